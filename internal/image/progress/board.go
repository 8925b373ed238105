package progress

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// Board has the pulls that are under way, so that anybody can be told of them. Its zero value is ready to be used.
type Board struct {
	mu      sync.Mutex // guards entries
	entries map[*Entry]struct{}
}

// About says what a pull is, and for whom.
type About struct {
	Reference      string
	Namespace, Pod string // of the pod that needs the image; empty where it is unknown
	Began          time.Time
}

// Pull is how far a pull is at a moment.
type Pull struct {
	About
	Phase       string // the phase of its layers that says most: downloading before waiting before finalizing
	Done, Total int64  // sums of the layers; Total is 0 while the layers are not known
	Rate        int64  // bytes a second that have come over the last seconds
	Layers      []Event
}

// Hosts are those that send the layers that are on their way, or have sent those that are there, by name.
func (p Pull) Hosts() []string {
	var now, before []string
	for _, l := range p.Layers {
		switch {
		case l.Host == "":
		case l.Phase == Downloading || l.Phase == Proving:
			now = append(now, l.Host)
		default:
			before = append(before, l.Host)
		}
	}
	if len(now) == 0 {
		now = before
	}
	slices.Sort(now)
	return slices.Compact(now)
}

// Enter puts a pull on the board. The caller takes it off with Leave.
func (b *Board) Enter(what About) *Entry {
	e := &Entry{board: b, about: what, layers: map[digest.Digest]int{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entries == nil {
		b.entries = map[*Entry]struct{}{}
	}
	b.entries[e] = struct{}{}
	return e
}

// List tells of all pulls, the one that began first at the beginning. It waits for nothing that a pull waits for.
func (b *Board) List(now time.Time) []Pull {
	b.mu.Lock()
	entries := make([]*Entry, 0, len(b.entries))
	for e := range b.entries {
		entries = append(entries, e)
	}
	b.mu.Unlock()
	pulls := make([]Pull, len(entries))
	for i, e := range entries {
		pulls[i] = e.at(now)
	}
	slices.SortFunc(pulls, func(p, q Pull) int {
		return cmp.Or(p.Began.Compare(q.Began), cmp.Compare(p.Reference, q.Reference))
	})
	return pulls
}

// Entry is a pull on the board.
type Entry struct {
	board *Board
	about About

	mu     sync.Mutex // guards what follows
	last   []Event    // the latest of each layer, in the order of their first ones
	layers map[digest.Digest]int
	speed  speed
}

// Leave takes the pull off the board.
func (e *Entry) Leave() {
	e.board.mu.Lock()
	defer e.board.mu.Unlock()
	delete(e.board.entries, e)
}

// Reporter makes a Reporter whose events the board hears too, before its caller does: one that stands still delays
// nothing of what the board shows.
func (e *Entry) Reporter(to func(Event)) *Reporter {
	r := NewReporter(to)
	r.entry = e
	return r
}

// note takes over an event.
func (e *Entry) note(p Event, now time.Time) {
	if p.Layer == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i, known := e.layers[p.Layer]
	if !known {
		i = len(e.last)
		e.layers[p.Layer], e.last = i, append(e.last, p)
	}
	before := e.last[i]
	p.Host = cmp.Or(p.Host, before.Host)
	if came := p.Done - before.Done; before.comes() && came > 0 {
		e.speed.add(now, came)
	}
	e.last[i] = p
}

// comes reports whether the layer's bytes come from a host.
func (p Event) comes() bool { return p.Phase == Downloading || p.Phase == Proving }

func (e *Entry) at(now time.Time) Pull {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := Pull{About: e.about, Layers: slices.Clone(e.last), Rate: e.speed.rate(now), Phase: Resolving}
	for _, l := range p.Layers {
		p.Done, p.Total = p.Done+l.Done, p.Total+l.Total
	}
	if len(p.Layers) > 0 {
		p.Phase = phaseOf(p.Layers)
	}
	return p
}

// phaseOf is the phase of a pull. It waits when all that it lacks waits. One whose layers are all there is recorded
// next, which is the end of finalizing them.
func phaseOf(layers []Event) string {
	for _, phase := range []string{Downloading, Proving, Rebuilding, Waiting} {
		if slices.ContainsFunc(layers, func(l Event) bool { return l.Phase == phase }) {
			return phase
		}
	}
	return Finalizing
}

// speed tells how many bytes came of late.
type speed struct {
	total int64
	marks []mark // the oldest first
}

// mark is how much had come at a time.
type mark struct {
	at    time.Time
	total int64
}

const (
	rateOver  = 4 * time.Second
	markEvery = 500 * time.Millisecond
)

func (s *speed) add(now time.Time, n int64) {
	if last := len(s.marks) - 1; last < 0 || now.Sub(s.marks[last].at) >= markEvery {
		s.forget(now)
		s.marks = append(s.marks, mark{now, s.total})
	}
	s.total += n
}

// forget drops marks that are too old to count.
func (s *speed) forget(now time.Time) {
	s.marks = slices.DeleteFunc(s.marks, func(m mark) bool { return now.Sub(m.at) > rateOver })
}

// rate returns bytes a second since the oldest mark that counts; none when nothing has come since.
func (s *speed) rate(now time.Time) int64 {
	s.forget(now)
	if len(s.marks) == 0 {
		return 0
	}
	span := max(now.Sub(s.marks[0].at), markEvery)
	return int64(float64(s.total-s.marks[0].total) / span.Seconds())
}
