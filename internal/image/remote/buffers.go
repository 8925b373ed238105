package remote

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// buffers hand out memory for segments. It is not the garbage collector's: on its heap each byte of a buffer would
// allow another byte of garbage.
type buffers struct {
	size int64 // of each, in bytes
	left int64 // bytes that may still be handed out, beyond what is free

	mu     sync.Mutex // guards left and what follows
	free   [][]byte
	used   int
	lacked time.Time // when a blob got no buffer
}

// lackedLately is how long a blob that got no buffer counts as waiting for one.
const lackedLately = 2 * time.Second

// get returns a buffer, or nil when the budget is used up.
func (p *buffers) get(now time.Time) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	buf := p.takeLocked()
	if buf == nil {
		p.lacked = now
	}
	return buf
}

// lacking reports whether others wait for a buffer.
func (p *buffers) lacking(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.lacked.IsZero() && now.Sub(p.lacked) < lackedLately
}

func (p *buffers) takeLocked() []byte {
	if n := len(p.free); n > 0 {
		buf := p.free[n-1]
		p.free, p.used = p.free[:n-1], p.used+1
		return buf
	}
	if p.left < p.size {
		return nil
	}
	buf, err := unix.Mmap(-1, 0, int(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil // the reader's own connection does without
	}
	p.left -= p.size
	p.used++
	return buf
}

// put takes back a buffer that is no longer read. When all buffers are back, their memory is released.
func (p *buffers) put(buf []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, buf)
	if p.used--; p.used > 0 {
		return
	}
	for _, b := range p.free {
		if err := unix.Munmap(b); err != nil {
			panic(fmt.Sprintf("unmap a buffer: %v", err)) // it was not ours: memory is not to be trusted
		}
		p.left += p.size
	}
	p.free = nil
}

// Buffered returns how many bytes are fetched ahead, or kept for it, at the moment.
func (c *Client) Buffered() int64 {
	return c.buffers.taken()
}

// taken returns the bytes that were handed out, or are free to be.
func (p *buffers) taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.used+len(p.free)) * p.size
}
