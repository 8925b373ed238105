package image

import (
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// Phases of a layer, and of a pull as a whole (then Layer is empty).
const (
	PhaseResolving   = "resolving"
	PhaseWaiting     = "waiting"
	PhaseDownloading = "downloading" // and unpacking: both go on at once
	PhaseDone        = "done"
	PhaseExists      = "exists"
	PhaseSettling    = "settling"
	PhaseExporting   = "exporting"
)

// Progress is one event of a pull, an import or an export. Done and Total count the compressed bytes of a layer; in an export
// those of its tar, and Layer is the diff id.
type Progress struct {
	Layer digest.Digest
	Done  int64
	Total int64
	Phase string
}

// reporter hands events to the caller, one at a time.
type reporter struct {
	mu sync.Mutex // guards to; held while it runs
	to func(Progress)
}

func newReporter(to func(Progress)) *reporter { return &reporter{to: to} }

func (r *reporter) report(p Progress) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to != nil {
		r.to(p)
	}
}

// close makes sure that the caller hears no more.
func (r *reporter) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = nil
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
