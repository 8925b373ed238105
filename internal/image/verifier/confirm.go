package verifier

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Confirm is Verify for an image that the node has. What the same programs have accepted in the same namespace is not
// asked again, and what several ask at once is asked once. A question waits for others of its own namespace only.
func (d *Dir) Confirm(ctx context.Context, q Question) error {
	programs, err := d.Programs()
	if err != nil {
		return err
	}
	key := q.key(identities(programs))
	if d.accepted.has(key) {
		return nil
	}
	var mine atomic.Bool // this caller's programs run
	for {
		asked := d.asking.DoChan(string(key[:]), func() (any, error) {
			mine.Store(true)
			leave, err := d.turns.enter(ctx, q.Namespace)
			if err != nil {
				return nil, errLeft
			}
			defer leave()
			if err = d.Verify(ctx, q); ctx.Err() != nil {
				err = errLeft
			}
			return nil, err
		})
		select {
		case <-ctx.Done():
			if mine.Load() {
				<-asked // they are killed, which is waited for
			}
			return context.Cause(ctx)
		case answer := <-asked:
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !errors.Is(answer.Err, errLeft):
				return answer.Err
			}
		}
	}
}

// errLeft is the answer to those who joined a question of a caller that has left: they ask it themselves.
var errLeft = errors.New("the caller that asked has left")

// key tells a question to these programs from others.
func (q Question) key(who [sha256.Size]byte) [sha256.Size]byte {
	text, _ := json.Marshal([]any{q.Name, q.Descriptor, q.Namespace}) // cannot fail: strings and numbers
	h := sha256.New()
	h.Write(who[:])
	h.Write(text)
	return [sha256.Size]byte(h.Sum(nil))
}

// identities tells the programs from those that take their places: each by its path, and by what changes when a file is
// replaced or written to (inode, size, times). One that is gone meanwhile counts too.
func identities(programs []string) [sha256.Size]byte {
	h := sha256.New()
	for _, path := range programs {
		h.Write([]byte(path + "\x00"))
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			for _, n := range []any{st.Dev, st.Ino, st.Size, st.Mode, st.Mtim.Nano(), st.Ctim.Nano()} {
				_ = binary.Write(h, binary.LittleEndian, n) // a hash takes all
			}
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// mostAnswers is how many answers are remembered: more than a node has images in all namespaces that run them.
const mostAnswers = 1024

// answers are the questions that were accepted, the oldest of which is forgotten first. The zero value is empty.
type answers struct {
	mu    sync.Mutex // guards what follows
	known map[[sha256.Size]byte]struct{}
	order [][sha256.Size]byte
}

func (a *answers) has(key [sha256.Size]byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.known[key]
	return ok
}

func (a *answers) add(key [sha256.Size]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.known[key]; ok {
		return
	}
	if a.known == nil {
		a.known = map[[sha256.Size]byte]struct{}{}
	}
	if len(a.order) == mostAnswers {
		delete(a.known, a.order[0])
		a.order = a.order[1:]
	}
	a.known[key] = struct{}{}
	a.order = append(a.order, key)
}

// perNamespace is how many questions of one namespace are asked at once: programs that hang for one delay no other.
const perNamespace = 8

// turns has each namespace ask a few questions at once. The zero value is ready.
type turns struct {
	mu    sync.Mutex // guards what follows
	slots map[string]*turn
}

type turn struct {
	slots chan struct{}
	users int
}

// enter waits until the namespace has a turn. leave ends it.
func (t *turns) enter(ctx context.Context, namespace string) (leave func(), err error) {
	one := t.use(namespace)
	select {
	case one.slots <- struct{}{}:
		return func() { <-one.slots; t.done(namespace) }, nil
	case <-ctx.Done():
		t.done(namespace)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) use(namespace string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots == nil {
		t.slots = map[string]*turn{}
	}
	one := t.slots[namespace]
	if one == nil {
		one = &turn{slots: make(chan struct{}, perNamespace)}
		t.slots[namespace] = one
	}
	one.users++
	return one
}

func (t *turns) done(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots[namespace].users--; t.slots[namespace].users == 0 {
		delete(t.slots, namespace)
	}
}
