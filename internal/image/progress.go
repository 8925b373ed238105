package image

import (
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// Phases of a layer, and of a pull as a whole (then Layer is empty).
const (
	PhaseResolving   = "resolving"
	PhaseWaiting     = "waiting"
	PhaseDownloading = "downloading" // and unpacking: both go on at once
	PhaseProving     = "proving"     // the store has the layer; the registry shows that it has it too
	PhaseRebuilding  = "rebuilding"  // from what another layer of the store keeps of the same blob
	PhaseDone        = "done"
	PhaseExists      = "exists"
	PhaseSettling    = "settling"
	PhaseExporting   = "exporting"
)

// Progress is one event of a pull, an import or an export. Done and Total count the compressed bytes of a layer; in an
// export those of its tar, and Layer is the diff id.
type Progress struct {
	Layer digest.Digest
	Done  int64
	Total int64
	Phase string
}

// reporter hands events to one caller, one at a time and in a goroutine of its own: a caller that is slow, or that
// stands still, delays nobody else who follows the same layer. Of a layer and phase it keeps the latest event alone.
type reporter struct {
	to   func(Progress)
	wake chan struct{} // holds one token when there is something to hand on
	done chan struct{} // closed when the caller hears no more

	mu      sync.Mutex // guards what follows
	waiting []Progress
	begun   bool // the goroutine runs
	closed  bool
}

func newReporter(to func(Progress)) *reporter {
	return &reporter{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// report never waits.
func (r *reporter) report(p Progress) {
	if r == nil || r.to == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	i := slices.IndexFunc(r.waiting, func(w Progress) bool { return w.Layer == p.Layer && w.Phase == p.Phase })
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

func (r *reporter) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hand hands on what waits until the reporter is closed and nothing waits.
func (r *reporter) hand() {
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
func (r *reporter) next() (p Progress, ok, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.waiting = nil
		return p, false, r.closed
	}
	p, r.waiting = r.waiting[0], r.waiting[1:]
	return p, true, false
}

// close hands on what waits, and returns when the caller hears no more.
func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	begun := r.begun
	r.signal()
	r.mu.Unlock()
	if begun {
		<-r.done
	}
}

// listeners are all who follow one layer's fetch.
type listeners struct {
	mu   sync.Mutex // guards what follows
	all  map[*reporter]int
	last Progress
	sent time.Time
}

const progressEvery = 100 * time.Millisecond

// add makes r hear of the events from now on, the last one first.
func (l *listeners) add(r *reporter) (remove func()) {
	if r == nil {
		return func() {}
	}
	l.mu.Lock()
	if l.all == nil {
		l.all = map[*reporter]int{}
	}
	l.all[r]++
	last := l.last
	l.mu.Unlock()
	if last.Phase != "" {
		r.report(last)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all[r]--; l.all[r] <= 0 {
			delete(l.all, r)
		}
	}
}

// of returns what tells all who listen how much of a layer is done.
func (l *listeners) of(w want, phase string) func(done int64) {
	return func(done int64) {
		l.report(Progress{Layer: w.desc.Digest, Done: done, Total: w.desc.Size, Phase: phase})
	}
}

// report tells all of p; of mere bytes not more often than progressEvery.
func (l *listeners) report(p Progress) {
	l.mu.Lock()
	now := time.Now()
	skip := p.Phase == l.last.Phase && p.Done < p.Total && now.Sub(l.sent) < progressEvery
	l.last = p
	var to []*reporter
	if !skip {
		l.sent = now
		for r := range l.all {
			to = append(to, r)
		}
	}
	l.mu.Unlock()
	for _, r := range to {
		r.report(p)
	}
}
