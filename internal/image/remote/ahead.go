package remote

import (
	"context"
	"sync"
	"time"
)

// prefetch is what is fetched ahead of a blob's reader: segments that follow each other, each by a connection of its
// own into a buffer that counts against the Client's budget. Only the reader's goroutine touches it.
type prefetch struct {
	blob   *Blob
	wanted bool         // the reader starved, and more connections are thought to help
	ranges rangeSupport // of the host
	queue  []*segment   // in order, without gaps
	until  time.Time    // it takes no buffer before
	work   sync.WaitGroup
}

const (
	// longHeld is how long a segment may take when others wait for its buffer.
	longHeld = 5 * time.Second
	// withoutBuffers is for how long a blob that was slower than that does without.
	withoutBuffers = 10 * time.Second
)

// giveWay gives back all buffers when others wait for one and the first segment has taken long.
func (a *prefetch) giveWay(now time.Time) {
	if seg := a.head(); seg == nil || now.Sub(seg.begun) < longHeld || !a.blob.repo.client.buffers.lacking(now) {
		return
	}
	a.until = now.Add(withoutBuffers)
	a.clear()
}

// clear lets go of all segments.
func (a *prefetch) clear() {
	for _, seg := range a.queue {
		seg.cancel()
	}
	for len(a.queue) > 0 {
		a.pop()
	}
}

// feed begins as many segments as connections and budget allow. The first one finds out whether the
// host serves ranges.
func (a *prefetch) feed() {
	b := a.blob
	o := &b.repo.client.options
	if seg := a.head(); seg != nil && a.ranges == rangesPossible && seg.isAnswered() {
		a.ranges = rangesServed
	}
	a.drop(b.at)
	now := b.mirrors.clock.Now()
	a.giveWay(now)
	for a.wanted && a.ranges != rangesNone && !now.Before(a.until) {
		s := b.mirrors.current()
		connections := o.Connections
		if b.direct != nil {
			connections--
		}
		start := a.frontier()
		if s == nil || len(a.queue) >= connections || start >= b.desc.Size || a.ranges == rangesPossible && len(a.queue) > 0 {
			return
		}
		buf := b.repo.client.buffers.get(now)
		if buf == nil {
			return
		}
		a.begin(s, buf, start, min(start+o.sizes.segment, b.desc.Size))
	}
}

// frontier is the first byte that no connection is fetching. A connection that was to fetch all the rest is left a
// segment more.
func (a *prefetch) frontier() int64 {
	b := a.blob
	switch {
	case len(a.queue) > 0:
		return a.queue[len(a.queue)-1].end
	case b.direct == nil:
		return b.at
	}
	sizes := b.repo.client.options.sizes
	if b.desc.Size-b.at > sizes.large && b.direct.end == b.desc.Size {
		return b.at + sizes.segment
	}
	return b.direct.end
}

func (a *prefetch) begin(s *mirrorState, buf []byte, start, end int64) {
	seg := &segment{start: start, end: end, begun: a.blob.mirrors.clock.Now(), buf: buf, changed: make(chan struct{}, 1)}
	a.queue = append(a.queue, seg)
	ctx, cancel := context.WithCancel(a.blob.ctx)
	seg.cancel = cancel
	a.work.Go(func() {
		defer close(seg.changed)
		defer seg.finish()
		a.blob.fill(ctx, s, seg)
	})
}

func (a *prefetch) head() *segment {
	if len(a.queue) == 0 {
		return nil
	}
	return a.queue[0]
}

// drop lets go of segments that are of no use to a reader at this place: they were refused, or it is past them. The one
// that is to find out whether the host serves ranges goes on beside the reader's own connection until it knows.
func (a *prefetch) drop(at int64) {
	asking := a.ranges == rangesPossible && a.blob.direct != nil
	for seg := a.head(); seg != nil && (seg.isRefused() || seg.end <= at && !asking); seg = a.head() {
		a.pop()
	}
}

// pop lets go of the first segment.
func (a *prefetch) pop() {
	seg := a.queue[0]
	a.queue = a.queue[1:]
	a.release(seg)
}

func (a *prefetch) release(seg *segment) {
	seg.cancel()
	for range seg.changed { // until its goroutine has left the buffer
	}
	a.blob.repo.client.buffers.put(seg.buf)
}

func (a *prefetch) close() {
	a.clear()
	a.work.Wait()
}

// segment is a part of a blob in memory, readable while it fills.
type segment struct {
	start, end int64
	begun      time.Time
	cancel     context.CancelFunc
	buf        []byte
	changed    chan struct{} // gets an element when bytes came; closed when no more will come

	mu       sync.Mutex // guards what follows
	filled   int        // bytes
	answered bool       // the host has begun to send it
	over     bool       // nothing more will come
}

// isAnswered says that the host has begun to send the segment.
func (s *segment) isAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

// reaches says that the host has begun to send the segment, and that a reader at this place has nothing to wait for.
func (s *segment) reaches(at int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered && s.start+int64(s.filled) >= at
}

// isRefused says that nothing came, and nothing will.
func (s *segment) isRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over && s.filled == 0
}

func (s *segment) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
}

func (s *segment) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

func (s *segment) have() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filled
}

func (s *segment) grow(n int) {
	s.mu.Lock()
	s.filled += n
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// read waits for bytes at a place within the segment. None means that none will come.
func (s *segment) read(p []byte, at int64) int {
	for {
		if have := s.have(); int64(have) > at-s.start {
			return copy(p, s.buf[at-s.start:have])
		}
		if _, open := <-s.changed; !open && int64(s.have()) <= at-s.start {
			return 0
		}
	}
}

// fill fetches a segment from the host that the reader's own connection uses. Whatever goes wrong for good ends it
// early: the reader goes on by itself from there, and finds out why. Only a stall counts against the host, for it cost
// the time.
func (b *Blob) fill(ctx context.Context, s *mirrorState, seg *segment) {
	for failures := 0; failures < 3; {
		from := seg.start + int64(seg.have())
		if from == seg.end {
			return
		}
		r := b.request(from, seg.end)
		r.strict = true
		st, f := b.open(ctx, s, r)
		if f == nil {
			seg.begin()
			before := seg.have()
			if f = b.drain(st, seg); seg.have()-before >= minProgress {
				failures = 0
			}
		}
		if f == nil {
			continue
		}
		failures++
		if ctx.Err() != nil {
			return
		}
		if f.elapsed || !f.again || f.after > shortPatience {
			b.mirrors.oneConnection(s, f)
			return
		}
		if sleep(ctx, b.mirrors.clock, max(f.after, backoff(failures))) != nil {
			return
		}
	}
	b.mirrors.oneConnection(s, nil)
}

func (b *Blob) drain(st *stream, seg *segment) *fault {
	defer st.close()
	for st.at < st.end {
		n, err := st.Read(seg.buf[st.at-seg.start : seg.end-seg.start])
		seg.grow(n)
		b.mirrors.progress(st.mirror, n)
		if err != nil {
			return faultOfError(err)
		}
	}
	return nil
}
