package op

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
)

// Op is one operation on the object that a Lane belongs to.
type Op struct {
	// Kind and Key say what is asked for: a caller that asks for the same while it runs joins it.
	Kind, Key string
	// Run does the work. Its context is the daemon's: it ends when the lane closes, when an operation with the right to
	// do so ends this one, and when no caller has waited for as long as Abandon.
	Run func(context.Context) error
	// Ends reports whether a running operation of that kind is ended, rather than waited for. Nil ends none.
	Ends func(running string) bool
	// Abandon ends the operation when no caller has waited for it for so long. Zero lets it finish.
	Abandon time.Duration
	// Entered, unless nil, is called each time the caller is let in: to begin the operation, which has not run yet then,
	// or to wait for one that runs. A caller whose context has ended before is not. The lane is locked meanwhile: it must
	// return at once.
	Entered func(begins bool)
}

// ErrAbandoned is the cause of an operation's end when no caller waited for it any more.
var ErrAbandoned = fail.New(errdefs.ErrAborted, "nobody waits for it any more")

// SupersededError is the cause of an operation's end when another one ended it.
type SupersededError struct{ By string }

func (e *SupersededError) Error() string { return "superseded by " + e.By }

// Unwrap returns the kind.
func (e *SupersededError) Unwrap() error { return errdefs.ErrAborted }

// WaitError says that the caller's context ended while the operation goes on.
type WaitError struct {
	Kind string
	Err  error
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("%v while waiting for %s, which goes on: ask again to join it", e.Err, e.Kind)
}

func (e *WaitError) Unwrap() error { return e.Err }

// Lane runs the operations of one object, one at a time. The zero Lane is ready for use.
type Lane struct {
	Of Owner // for people who ask what runs; it may be left empty

	mu     sync.Mutex
	cur    *run
	queued map[string]int // how many callers wait for cur to end so that their operation of that kind begins
}

type run struct {
	op      Op
	ctx     context.Context // of the work
	since   time.Time
	trace   trace
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error // read after done
	waiters int   // guarded by the lane's mu, as are ended and idle
	ended   bool  // it was told to end: its answer is for those who wait already
	idle    *time.Timer
}

func (r *run) end(cause error) {
	r.ended = true
	r.cancel(cause)
}

// Do runs o, or joins the same operation that runs already, and waits for its end or the caller's. An operation of
// another kind or key is waited for first, or ended where o may. base is the daemon's context, from which the work's is
// made.
func (l *Lane) Do(base, caller context.Context, o Op) error {
	for {
		// What is to be ended when no caller waits for it must run, so that it is: the caller may have begun it
		// elsewhere.
		if err := caller.Err(); err != nil && o.Abandon == 0 {
			return &WaitError{o.Kind, err}
		}
		r, way := l.enter(base, o)
		switch way {
		case begins:
			go l.work(r)
			return l.wait(caller, r)
		case joins:
			return l.wait(caller, r)
		}
		select {
		case <-r.done:
			l.unqueue(o.Kind)
		case <-caller.Done():
			l.unqueue(o.Kind)
			return &WaitError{r.op.Kind, caller.Err()}
		}
	}
}

func (l *Lane) unqueue(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued[kind]--; l.queued[kind] <= 0 {
		delete(l.queued, kind)
	}
}

// way reports whether a requested operation begins, joins the running one or queues behind it.
type way int

const (
	begins way = iota // the lane was free
	joins             // the same runs already
	queues            // another must end first
)

// enter returns the run to wait for. One that begins holds the lane, and is the caller's to start.
func (l *Lane) enter(base context.Context, o Op) (*run, way) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Entered != nil {
		o.Entered(l.cur == nil)
	}
	if r := l.cur; r != nil {
		if r.op.Kind == o.Kind && r.op.Key == o.Key && !r.ended {
			r.waiters++
			if r.idle != nil {
				r.idle.Stop()
			}
			return r, joins
		}
		if o.Ends != nil && o.Ends(r.op.Kind) {
			r.end(&SupersededError{o.Kind})
		}
		if l.queued == nil {
			l.queued = map[string]int{}
		}
		l.queued[o.Kind]++
		return r, queues
	}
	ctx, cancel := context.WithCancelCause(base)
	r := &run{op: o, since: time.Now(), cancel: cancel, done: make(chan struct{}), waiters: 1}
	r.ctx = context.WithValue(ctx, traceKey{}, &r.trace)
	l.cur = r
	boardOf(base).add(l, r)
	return r, begins
}

// work runs the operation.
func (l *Lane) work(r *run) {
	unpanicked(r.op.Kind, func() error { return r.op.Run(r.ctx) }, func(err error) { l.finish(r, err) })
}

// unpanicked runs fn and tells end how it ended. One that panics fails, with its stack in the log: what is wrong with
// one pod's record must not take down the daemon of all, again at each start. The log may hang: end comes first.
func unpanicked(what string, fn func() error, end func(error)) {
	defer func() {
		if p := recover(); p != nil {
			stack := string(debug.Stack())
			end(fail.New(errdefs.ErrInternal, "%s: panic: %v; the daemon's log has the stack", what, p))
			slog.Error("panic in an operation; please report it", "operation", what, "panic", p, "stack", stack)
		}
	}()
	end(fn())
}

// finish frees the lane and tells those who wait how the operation ended.
func (l *Lane) finish(r *run, err error) {
	boardOf(r.ctx).remove(r)
	l.mu.Lock()
	r.err = err
	l.cur = nil
	if r.idle != nil {
		r.idle.Stop()
	}
	l.mu.Unlock()
	close(r.done)
	r.cancel(nil)
}

func (l *Lane) wait(caller context.Context, r *run) error {
	select {
	case <-r.done:
		l.leave(r)
		return r.err
	case <-caller.Done():
		l.leave(r)
		return &WaitError{r.op.Kind, caller.Err()}
	}
}

func (l *Lane) leave(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.waiters--
	if r.waiters > 0 || r.op.Abandon == 0 || l.cur != r {
		return
	}
	r.idle = time.AfterFunc(r.op.Abandon, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if r.waiters == 0 {
			r.end(ErrAbandoned)
		}
	})
}

// activity tells of r, which is or was the lane's.
func (l *Lane) activity(r *run) Activity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Activity{
		Of: l.Of, Kind: r.op.Kind, Since: r.since, Callers: r.waiters, Ended: r.ended,
		Queued: maps.Clone(l.queued), Steps: r.trace.active(),
	}
}

// Busy says which kind of operation runs, "" when none.
func (l *Lane) Busy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == nil {
		return ""
	}
	return l.cur.op.Kind
}

// Backoff is a capped exponential wait between tries.
type Backoff struct{ First, Max time.Duration }

// After says how long to wait after the n-th failure in a row, counted from 1.
func (b Backoff) After(n int) time.Duration {
	d := b.First
	for i := 1; i < n && d < b.Max; i++ {
		d *= 2
	}
	return min(d, b.Max)
}
