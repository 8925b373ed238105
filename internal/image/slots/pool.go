package slots

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
)

// clock is time; tests have their own.
type clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stopped before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Pool has the slots that all transfers share.
type Pool struct {
	clock clock
	slow  int // open transfers without a slot

	mu      sync.Mutex // guards what follows, the hosts and the transfers
	most    int        // slots, and open transfers of one host
	hosts   map[string]*host
	holders map[*Transfer]struct{} // of slots
	open    int                    // transfers that have begun
	waiting int                    // in the queues of all hosts
	armed   bool                   // review is going to be called
}

// host is a registry host with transfers.
type host struct {
	open   map[*Transfer]struct{}
	slots  int
	served time.Time // when it got its last slot, or came
	again  list.List // those that have begun and want a slot again
	fresh  list.List // those that have not begun
}

// every is how often those that wait are reviewed.
const every = 100 * time.Millisecond

// New makes a pool of slots. At most slow transfers that have begun are without one.
func New(most, slow int) *Pool { return newPool(most, slow, realClock{}) }

func newPool(most, slow int, c clock) *Pool {
	return &Pool{clock: c, most: most, slow: slow, hosts: map[string]*host{}, holders: map[*Transfer]struct{}{}}
}

// Resize changes how many slots there are. Those that are taken beyond that are not given out again.
func (p *Pool) Resize(most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = most
	p.serve(p.clock.Now())
}

// Used returns how many slots are made use of. Those of transfers that starve are there for others.
func (p *Pool) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, now := 0, p.clock.Now()
	for t := range p.holders {
		if !t.isStarving(now) {
			n++
		}
	}
	return n
}

// WithoutSlot returns how many transfers go on without a slot.
func (p *Pool) WithoutSlot() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open - len(p.holders)
}

// Transfer makes a transfer from a host. It holds nothing until Begin.
func (p *Pool) Transfer(host string) *Transfer {
	return &Transfer{pool: p, name: host, wake: make(chan struct{}, 1)}
}

func (p *Pool) enter(t *Transfer, end context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, now := p.hosts[t.name], p.clock.Now()
	if h == nil {
		h = &host{open: map[*Transfer]struct{}{}, served: now}
		p.hosts[t.name] = h
	}
	t.host, t.end = h, end
	p.wait(t, now)
}

func (p *Pool) hasBegun(t *Transfer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !t.opened.IsZero()
}

func (p *Pool) leave(t *Transfer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.host == nil {
		return
	}
	remove(p, t)
	t.end(nil)
	p.serve(p.clock.Now())
}

// remove takes a transfer out of all that it is in.
func remove(p *Pool, t *Transfer) {
	h := t.host
	dequeue(p, t)
	if t.slot {
		release(p, t)
	}
	if !t.opened.IsZero() {
		delete(h.open, t)
		p.open--
	}
	if len(h.open) == 0 && h.fresh.Len() == 0 {
		delete(p.hosts, t.name)
	}
	t.host = nil
}

func (p *Pool) received(t *Transfer) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.bytes
}

func (p *Pool) starves(t *Transfer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.getsLittle(p.clock.Now())
}

// await notes that a transfer waits for its host.
func (p *Pool) await(t *Transfer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.reading.IsZero() {
		t.reading = p.clock.Now()
	}
}

// beforeRead says how long to wait before the next look: not at all when the transfer may read.
func (p *Pool) beforeRead(t *Transfer) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	t.charge(now)
	if !t.slot && t.credit <= 0 && t.host != nil {
		p.wait(t, now)
	}
	if t.slot || t.credit > 0 || t.host == nil {
		if t.reading.IsZero() {
			t.reading = now
		}
		return 0
	}
	return max(10*time.Millisecond, time.Duration(-t.credit/Floor*float64(time.Second)))
}

func (p *Pool) afterRead(t *Transfer, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	t.meter.add(now, n, now.Sub(later(t.reading, t.meter.start)))
	t.bytes += int64(n)
	t.reading, t.stopped = time.Time{}, time.Time{}
	if !t.slot {
		t.credit -= float64(n)
		t.stopped = now
	}
}

// wait queues a transfer for a slot, unless it is, and gives it one if there is one for it.
func (p *Pool) wait(t *Transfer, now time.Time) {
	if t.queued != nil {
		return
	}
	p.waiting++
	t.queued = t.queue().PushBack(t)
	if t.host.next() == t {
		p.offer(t, now)
	}
	p.arm()
}

func dequeue(p *Pool, t *Transfer) {
	if t.queued == nil {
		return
	}
	t.queue().Remove(t.queued)
	t.queued = nil
	p.waiting--
}

// queue is where the transfer waits when it does.
func (t *Transfer) queue() *list.List {
	if t.opened.IsZero() {
		return &t.host.fresh
	}
	return &t.host.again
}

// next is whose turn it is at a host; nil when no layer waits. Those that have begun come first, and one that has
// something to read without a slot does not wait.
func (h *host) next() *Transfer {
	for e := h.again.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*Transfer); t.reading.IsZero() {
			return t
		}
	}
	if e := h.fresh.Front(); e != nil {
		return e.Value.(*Transfer)
	}
	return nil
}

// arm has those that wait be reviewed, as long as there are any.
func (p *Pool) arm() {
	if p.waiting > 0 && !p.armed {
		p.armed = true
		p.clock.AfterFunc(every, p.review)
	}
}

// review gives slots to those that may take one by now.
func (p *Pool) review() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	now := p.clock.Now()
	var next []*Transfer
	for _, h := range p.hosts {
		if t := h.next(); t != nil {
			next = append(next, t)
		}
	}
	slices.SortFunc(next, func(a, b *Transfer) int { return before(a, b, now) })
	for _, t := range next {
		for t != nil && t.queued != nil && p.offer(t, now) {
			t = t.host.next()
		}
	}
	p.arm()
}

// serve gives out the slots that are free.
func (p *Pool) serve(now time.Time) {
	for len(p.holders) < p.most {
		var first *Transfer
		for _, h := range p.hosts {
			if t := h.next(); t != nil && mayBegin(p, t) && (first == nil || before(t, first, now) < 0) {
				first = t
			}
		}
		if first == nil {
			return
		}
		p.grant(first, now)
	}
}

// offer gives a slot to a transfer whose turn it is at its host: a free one, or one that it may take. It says whether
// there was one.
func (p *Pool) offer(t *Transfer, now time.Time) bool {
	if !mayBegin(p, t) {
		return false
	}
	if len(p.holders) >= p.most {
		from := slowest(p.holders, now, func(v *Transfer) bool { return mayTake(t, v, now) })
		if from == nil || t.opened.IsZero() && !makeRoom(p, t, now) {
			return false
		}
		if len(p.holders) >= p.most { // none that had one made room
			displace(p, from, now)
		}
	}
	p.grant(t, now)
	return true
}

// mayBegin says that the host has no more transfers open than there are slots: more would not be faster.
func mayBegin(p *Pool, t *Transfer) bool { return !t.opened.IsZero() || len(t.host.open) < p.most }

func (p *Pool) grant(t *Transfer, now time.Time) {
	dequeue(p, t)
	if t.opened.IsZero() {
		t.opened, t.reading = now, now // until the first byte it waits for its host
		t.host.open[t] = struct{}{}
		p.open++
	}
	t.slot, t.since = true, now
	t.host.slots++
	t.host.served = now
	p.holders[t] = struct{}{}
	t.meter.reset(now)
	t.notify()
}

func release(p *Pool, t *Transfer) {
	t.slot = false
	t.host.slots--
	delete(p.holders, t)
}

// displace takes the slot of a transfer, which goes on without.
func displace(p *Pool, t *Transfer, now time.Time) {
	if t.bytes > 0 && now.Sub(t.since) >= window {
		rate, idle := t.meter.read(now, t.reading)
		t.pace = pace{rate, idle, now.Add(remembered)}
	}
	release(p, t)
	t.credit, t.paid = 0, now
	if t.reading.IsZero() {
		t.stopped = now // what it works on from here on, it does without a slot
	}
}

// makeRoom sees to it that t may begin although another transfer loses its slot for it. When as many go on without a
// slot as may, one of a host that has the most has to end: the slowest of those that starve and began long ago.
func makeRoom(p *Pool, t *Transfer, now time.Time) bool {
	if p.open-len(p.holders) < p.slow {
		return true
	}
	most, mine := 0, len(t.host.open)
	for _, h := range p.hosts {
		most = max(most, len(h.open))
	}
	if most < mine+min(mine, 1)+1 {
		return false
	}
	crowd := map[*Transfer]struct{}{}
	for _, h := range p.hosts {
		if len(h.open) == most {
			maps.Copy(crowd, h.open)
		}
	}
	v := slowest(crowd, now, func(v *Transfer) bool { return now.Sub(v.opened) >= heldLong && v.getsLittle(now) })
	if v == nil {
		return false
	}
	v.end(crowdedOut(v, now))
	remove(p, v)
	return true
}

func crowdedOut(t *Transfer, now time.Time) error {
	span := now.Sub(t.opened)
	return fail.New(crierrors.ErrRegistryUnavailable,
		"%s sends too slowly, %d bytes a second in %s, and has the most of the layers that are fetched as slowly, while "+
			"others wait: pull the image again later, or from another registry",
		t.name, int64(float64(t.bytes)/span.Seconds()), span.Round(time.Second))
}
