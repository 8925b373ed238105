package stream

import (
	"slices"
	"sync"

	"github.com/moby/spdystream"
	"github.com/moby/spdystream/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// kept is what the library of SPDY has of what a client sends and nobody has read. Its queues are those of the library,
// which puts a frame into one by the number of its stream, and looks at the next frame of a queue only when the one
// before was read, or belongs to a stream that nobody reads.
type kept struct {
	backlog *backlog

	mu     sync.Mutex // guards what follows
	queues [spdystream.FRAME_WORKERS][]part
	read   map[spdy.StreamId]bool // somebody reads the stream, or will
}

// part is what was not read of a frame.
type part struct {
	id spdy.StreamId
	n  int64
}

func newKept(of *backlogs) *kept {
	return &kept{backlog: &backlog{of: of}, read: map[spdy.StreamId]bool{}}
}

// begin says that a stream will be read.
func (k *kept) begin(id spdy.StreamId) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read[id] = true
}

// add waits until there is room for n bytes of a stream, which the library gets next.
func (k *kept) add(id spdy.StreamId, n int) {
	for {
		freed := k.tryAdd(part{id, int64(n)})
		if freed == nil {
			return
		}
		awaitFreed(freed, nil)
	}
}

// tryAdd returns what to wait for where there is no room.
func (k *kept) tryAdd(p part) (freed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.n == 0 || !k.read[p.id] {
		return nil
	}
	if freed := k.backlog.take(p.n); freed != nil {
		return freed
	}
	q := &k.queues[p.id%spdystream.FRAME_WORKERS]
	*q = append(*q, p)
	return nil
}

// sub says that n bytes of a stream were read.
func (k *kept) sub(id spdy.StreamId, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := &k.queues[id%spdystream.FRAME_WORKERS]
	left := int64(n)
	for i := range *q {
		if p := &(*q)[i]; p.id == id {
			now := min(left, p.n)
			p.n, left = p.n-now, left-now
		}
	}
	k.backlog.give(int64(n) - left)
	k.pruneLocked(q)
}

// end says that a stream is not read any more. The library throws away what it has of it, once it comes to that.
func (k *kept) end(id spdy.StreamId) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.read, id)
	k.pruneLocked(&k.queues[id%spdystream.FRAME_WORKERS])
}

// pruneLocked gives back what the library has thrown away: all before the first part that somebody is to read.
func (k *kept) pruneLocked(q *[]part) {
	gone := slices.IndexFunc(*q, func(p part) bool { return p.n > 0 && k.read[p.id] })
	if gone < 0 {
		gone = len(*q)
	}
	for _, p := range (*q)[:gone] {
		k.backlog.give(p.n)
	}
	*q = slices.Delete(*q, 0, gone)
}

// counted is a stream what is read of which is kept no more.
type counted struct {
	httpstream.Stream
	kept *kept
}

// Read reads what the client sends.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	c.kept.sub(spdy.StreamId(c.Identifier()), n)
	return n, err
}
