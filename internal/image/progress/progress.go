// Package progress tells callers how far a pull, an import or an export is, without ever waiting for them.
package progress

import (
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Phases of a layer, and of a pull as a whole (then Layer is empty).
const (
	Resolving   = "resolving"
	Waiting     = "waiting"
	Downloading = "downloading" // and unpacking: both go on at once
	Proving     = "proving"     // the store has the layer; the registry shows that it has it too
	Rebuilding  = "rebuilding"  // from what another layer of the store keeps of the same blob
	Done        = "done"
	Exists      = "exists"
	Finalizing  = "finalizing"
	Exporting   = "exporting"
)

// Event is one event of a pull, an import or an export. Done and Total count the compressed bytes of a layer; in an
// export those of its tar, and Layer is the diff id.
type Event struct {
	Layer digest.Digest
	Done  int64
	Total int64
	Phase string
	Host  string // that sends the layer; empty while that is not known, and of what no host sends
}

// Reporter hands events to one caller, one at a time and in a goroutine of its own: a caller that is slow, or that
// stands still, delays no other follower of the same layer. Of a layer and phase it keeps the latest event alone.
type Reporter struct {
	to    func(Event)
	entry *Entry        // nil for what is on no board
	wake  chan struct{} // holds one token when there is something to hand on
	done  chan struct{} // closed when the caller hears no more

	mu      sync.Mutex // guards what follows
	waiting []Event
	begun   bool // the goroutine runs
	closed  bool
}

func NewReporter(to func(Event)) *Reporter {
	return &Reporter{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Report never waits.
func (r *Reporter) Report(p Event) {
	if r == nil {
		return
	}
	if r.entry != nil {
		r.entry.note(p, time.Now())
	}
	if r.to == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	i := slices.IndexFunc(r.waiting, func(w Event) bool { return w.Layer == p.Layer && w.Phase == p.Phase })
	if i >= 0 {
		r.waiting[i] = p
	} else {
		r.waiting = append(r.waiting, p)
	}
	if !r.begun {
		r.begun = true
		go r.hand()
	}
	r.signal()
}

func (r *Reporter) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hand hands on what waits until the Reporter is closed and nothing waits.
func (r *Reporter) hand() {
	defer close(r.done)
	for range r.wake {
		for {
			p, ok, last := r.next()
			if last {
				return
			}
			if !ok {
				break
			}
			r.to(p)
		}
	}
}

// next takes the oldest event that waits. last says that none comes any more.
func (r *Reporter) next() (p Event, ok, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.waiting = nil
		return p, false, r.closed
	}
	p, r.waiting = r.waiting[0], r.waiting[1:]
	return p, true, false
}

// Close hands on what waits, and returns when the caller hears no more.
func (r *Reporter) Close() {
	r.mu.Lock()
	r.closed = true
	begun := r.begun
	r.signal()
	r.mu.Unlock()
	if begun {
		<-r.done
	}
}

// Listeners are all who follow one layer's fetch.
type Listeners struct {
	mu   sync.Mutex // guards what follows
	all  map[*Reporter]int
	last Event
	sent time.Time
}

const progressEvery = 100 * time.Millisecond

// Add makes r hear of the events from now on, the last one first.
func (l *Listeners) Add(r *Reporter) (remove func()) {
	if r == nil {
		return func() {}
	}
	l.mu.Lock()
	if l.all == nil {
		l.all = map[*Reporter]int{}
	}
	l.all[r]++
	last := l.last
	l.mu.Unlock()
	if last.Phase != "" {
		r.Report(last)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all[r]--; l.all[r] <= 0 {
			delete(l.all, r)
		}
	}
}

// Tell says how much of a layer is done, and which host sends it; none for what comes from no host.
type Tell func(done int64, host string)

// Of returns what tells all who listen how much of a layer is done.
func (l *Listeners) Of(blob ocispec.Descriptor, phase string) Tell {
	return func(done int64, host string) {
		l.Report(Event{Layer: blob.Digest, Done: done, Total: blob.Size, Phase: phase, Host: host})
	}
}

// Report tells all of p; of mere bytes not more often than progressEvery.
func (l *Listeners) Report(p Event) {
	l.mu.Lock()
	now := time.Now()
	skip := p.Phase == l.last.Phase && p.Done < p.Total && now.Sub(l.sent) < progressEvery
	l.last = p
	var to []*Reporter
	if !skip {
		l.sent = now
		for r := range l.all {
			to = append(to, r)
		}
	}
	l.mu.Unlock()
	for _, r := range to {
		r.Report(p)
	}
}

// Last is the latest event. Not every one is passed on.
func (l *Listeners) Last() Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
