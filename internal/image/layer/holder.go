package layer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrGaveWay ends a stream that held the memory for a large zstd window and waited for a slow source, while other
// streams waited for that memory. The caller discards what it has read and may read the stream again, best after the
// whole blob has been fetched.
var ErrGaveWay = errors.New("the memory for its zstd window went to another layer: its source was too slow")

// Holder is a stream that may hold the memory for a large zstd window.
type Holder struct {
	IsSlow func() bool     // reports whether its source sends hardly anything
	End    func(err error) // ends the stream with an error
}

type holderKey struct{}

// WithHolder sets the holder of the windows of streams that are decompressed with the context. A stream without a
// holder keeps its windows until it ends.
func WithHolder(ctx context.Context, h *Holder) context.Context {
	return context.WithValue(ctx, holderKey{}, h)
}

type wholeKey struct{}

// WithWhole sets what a stream that is decompressed with the context calls before it waits for a large window, each
// time. The function reads the stream's source to its end, by way of the disk: then the stream holds the window only as
// long as it takes to decompress, however slow the source is.
func WithWhole(ctx context.Context, makeWhole func() error) context.Context {
	return context.WithValue(ctx, wholeKey{}, makeWhole)
}

// makeWhole reads the source of a stream to its end if the context says how.
func makeWhole(ctx context.Context) error {
	if do, ok := ctx.Value(wholeKey{}).(func() error); ok {
		return do()
	}
	return nil
}

// holders are the streams that have large windows.
type holders struct {
	mu  sync.Mutex // guards what follows
	all map[*Holder]int
}

// add notes that the holder of ctx has a window until leave is called.
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

// giveWay ends one slow holder after each period that a stream has waited, until stop is called.
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
