package layer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrGaveWay ends a stream that held the memory for a large zstd window while it waited for its source, and others
// waited for that memory. What it has brought is lost; it may be read again, best when all of it is there.
var ErrGaveWay = errors.New("the memory for its zstd window went to another layer: its source was too slow")

// Holder is a stream that may hold the memory for a large zstd window.
type Holder struct {
	IsSlow func() bool     // its source sends next to nothing
	End    func(err error) // ends the stream with an error
}

type holderKey struct{}

// WithHolder says who holds the windows of a stream that is decompressed with the context. Without one, a stream keeps
// them until it ends.
func WithHolder(ctx context.Context, h *Holder) context.Context {
	return context.WithValue(ctx, holderKey{}, h)
}

// holders are the streams that have large windows.
type holders struct {
	mu  sync.Mutex // guards what follows
	all map[*Holder]int
}

// add notes that the holder of ctx has a window.
func (h *holders) add(ctx context.Context) (leave func()) {
	one, ok := ctx.Value(holderKey{}).(*Holder)
	if !ok {
		return func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[*Holder]int{}
	}
	h.all[one]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.all[one]--; h.all[one] == 0 {
			delete(h.all, one)
		}
	}
}

// giveWay ends one of those that are slow after each time that somebody has waited, until it is stopped.
func (h *holders) giveWay(each time.Duration) (stop func()) {
	over := make(chan struct{})
	go func() {
		tick := time.NewTicker(each)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				h.endSlow()
			}
		}
	}()
	return func() { close(over) }
}

func (h *holders) endSlow() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.all {
		if one.IsSlow() {
			one.End(ErrGaveWay)
			return
		}
	}
}
