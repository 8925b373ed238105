// Package ahead lets the stages of a layer (receive and digest, inflate, digest, unpack) use a core each: a stream is
// read in a goroutine of its own, a few buffers before whoever reads it.
package ahead

import (
	"io"
	"sync"
	"sync/atomic"
)

// Stream reads a stream in a goroutine of its own, a few buffers before its reader, and digests it in another: the
// stages of one layer (receive and digest, inflate, digest, unpack) then use a core each.
type Stream struct {
	full, free chan *buffer
	made       int // buffers, of the goroutine that reads
	now        *buffer
	rest       []byte
	err        error // set before full is closed
	stop       chan struct{}
	stopping   sync.Once
}

// A stream has at least leastBuffers. While few streams are open they share sharedBuffers: the stages of a lone large
// layer then meet less often, which counts where something else wants the processors too; many layers need no such
// room, for one works while another waits.
const (
	leastBuffers  = 4
	sharedBuffers = 16
	mostBuffers   = sharedBuffers / 2
	bufferSize    = 64 << 10
)

var open atomic.Int32 // streams

func allowed() int {
	return min(mostBuffers, max(leastBuffers, sharedBuffers/int(max(open.Load(), 1))))
}

type buffer struct {
	data [bufferSize]byte
	n    int
}

var pool = sync.Pool{New: func() any { return new(buffer) }}

// Read starts reading r. What is read goes through sum as well, when it is not nil; sum has all of it when Read
// has returned io.EOF. The caller closes it.
func Read(r io.Reader, sum io.Writer) *Stream {
	a := &Stream{
		full: make(chan *buffer, mostBuffers), free: make(chan *buffer, mostBuffers), stop: make(chan struct{}),
	}
	open.Add(1)
	if sum == nil {
		go a.run(r, a.full)
		return a
	}
	read := make(chan *buffer, mostBuffers)
	go a.run(r, read)
	go func() {
		defer close(a.full)
		for buf := range read {
			_, _ = sum.Write(buf.data[:buf.n])
			a.full <- buf
		}
	}()
	return a
}

// run never blocks on to: there are as many places as buffers.
func (a *Stream) run(r io.Reader, to chan<- *buffer) {
	defer close(to)
	for {
		buf := a.take()
		if buf == nil {
			a.err = io.ErrClosedPipe
			return
		}
		var err error
		buf.n, err = a.fill(r, buf.data[:])
		to <- buf
		if err != nil {
			a.err = err
			return
		}
	}
}

// buffer is one that is free, or nil when the stream was closed. A short stream never makes them all.
func (a *Stream) take() *buffer {
	select {
	case <-a.stop:
		return nil
	case buf := <-a.free:
		return buf
	default:
	}
	if a.made < allowed() {
		a.made++
		return pool.Get().(*buffer)
	}
	select {
	case <-a.stop:
		return nil
	case buf := <-a.free:
		return buf
	}
}

// fill is io.ReadFull that keeps the reader's own error: a stream that broke off must not look like one that ended. Who
// closes the stream waits for one read at most: a slow host may take minutes to fill a buffer.
func (a *Stream) fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil && !a.isStopped() {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (a *Stream) isStopped() bool {
	select {
	case <-a.stop:
		return true
	default:
		return false
	}
}

func (a *Stream) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.now != nil {
			a.free <- a.now
			a.now = nil
		}
		buf, ok := <-a.full
		if !ok {
			return 0, a.err
		}
		a.now, a.rest = buf, buf.data[:buf.n]
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// End has no more be read; a read that is under way goes on.
func (a *Stream) End() { a.stopping.Do(func() { close(a.stop) }) }

// Close ends the goroutines and waits for them, and so for a read that is under way.
func (a *Stream) Close() {
	a.End()
	defer open.Add(-1)
	for buf := range a.full {
		pool.Put(buf)
	}
	if a.now != nil {
		pool.Put(a.now)
		a.now, a.rest = nil, nil
	}
	close(a.free)
	for buf := range a.free {
		pool.Put(buf)
	}
}
