package image

import (
	"io"
	"sync"
	"sync/atomic"
)

// ahead reads a stream in a goroutine of its own, a few buffers before its reader, and digests it in another: the stages
// of one layer (receive and digest, inflate, digest, unpack) then use a core each.
type ahead struct {
	full, free chan *aheadBuffer
	made       int // buffers, of the goroutine that reads
	now        *aheadBuffer
	rest       []byte
	err        error // set before full is closed
	stop       chan struct{}
}

// A stream has at least aheadBuffers. While few streams are open they share aheadShared: the stages of a lone large layer
// then meet less often, which counts where something else wants the processors too; many layers need no such room, for
// one works while another waits.
const (
	aheadBuffers = 4
	aheadShared  = 16
	aheadMost    = aheadShared / 2
	aheadSize    = 64 << 10
)

var aheadOpen atomic.Int32 // streams

func aheadAllowed() int {
	return min(aheadMost, max(aheadBuffers, aheadShared/int(max(aheadOpen.Load(), 1))))
}

type aheadBuffer struct {
	data [aheadSize]byte
	n    int
}

var aheadPool = sync.Pool{New: func() any { return new(aheadBuffer) }}

// readAhead starts reading r. What is read goes through sum as well, when it is not nil; sum has all of it when Read has
// returned io.EOF. The caller closes it.
func readAhead(r io.Reader, sum io.Writer) *ahead {
	a := &ahead{full: make(chan *aheadBuffer, aheadMost), free: make(chan *aheadBuffer, aheadMost), stop: make(chan struct{})}
	aheadOpen.Add(1)
	if sum == nil {
		go a.run(r, a.full)
		return a
	}
	read := make(chan *aheadBuffer, aheadMost)
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
func (a *ahead) run(r io.Reader, to chan<- *aheadBuffer) {
	defer close(to)
	for {
		buf := a.buffer()
		if buf == nil {
			a.err = io.ErrClosedPipe
			return
		}
		var err error
		buf.n, err = fill(r, buf.data[:])
		to <- buf
		if err != nil {
			a.err = err
			return
		}
	}
}

// buffer is one that is free, or nil when the stream was closed. A short stream never makes them all.
func (a *ahead) buffer() *aheadBuffer {
	select {
	case <-a.stop:
		return nil
	case buf := <-a.free:
		return buf
	default:
	}
	if a.made < aheadAllowed() {
		a.made++
		return aheadPool.Get().(*aheadBuffer)
	}
	select {
	case <-a.stop:
		return nil
	case buf := <-a.free:
		return buf
	}
}

// fill is io.ReadFull that keeps the reader's own error: a stream that broke off must not look like one that ended.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (a *ahead) Read(p []byte) (int, error) {
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

// close ends the goroutines and waits for them; whoever closes has made sure that r does not block.
func (a *ahead) close() {
	close(a.stop)
	defer aheadOpen.Add(-1)
	for buf := range a.full {
		aheadPool.Put(buf)
	}
	if a.now != nil {
		aheadPool.Put(a.now)
		a.now, a.rest = nil, nil
	}
	close(a.free)
	for buf := range a.free {
		aheadPool.Put(buf)
	}
}
