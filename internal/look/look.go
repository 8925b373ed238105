// Package look asks a file system for something without waiting longer than the caller can.
//
// A call to a disk that hangs cannot be ended by anybody, and it holds a thread. So it runs beside its caller, which
// leaves when its time is over, and the number of calls to one disk is bounded.
package look

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// AtOnce is how many may look at one disk at a time: each that hangs holds a thread until the disk answers.
const AtOnce = 16

// readWait is how long a read waits for a disk before it answers without it.
const readWait = 500 * time.Millisecond

// ErrHangs says that a disk did not answer in time, or that it has not yet answered an earlier caller.
var ErrHangs = errors.New("its disk does not answer")

// Disk is what is looked at: one file system, or several that are expected to hang together. All methods may be called
// at any time by anybody.
type Disk struct {
	slots chan struct{}
	late  atomic.Int32 // looks that their callers have left and that have no answer yet
}

// NewDisk makes a Disk. Nothing is asked.
func NewDisk() *Disk { return &Disk{slots: make(chan struct{}, AtOnce)} }

// Within returns what ask says of d, or the cause of ctx's end when that comes first. Then ask goes on by itself, and
// its answer is lost: it must leave nothing behind.
func Within[T any](ctx context.Context, d *Disk, ask func() (T, error)) (T, error) {
	if err := d.take(ctx); err != nil {
		var none T
		return none, err
	}
	return within(ctx, d, ask, d.release)
}

// take waits for a look at d to be allowed; release ends it.
func (d *Disk) take(ctx context.Context) error {
	select {
	case d.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Disk) release() { <-d.slots }

// within is Within for a look that is allowed already. It calls end when ask has returned, however long after the
// caller has left that is.
func within[T any](ctx context.Context, d *Disk, ask func() (T, error), end func()) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	var ended atomic.Bool // by whoever comes first, ask or its caller
	go func() {
		defer end()
		value, err := ask()
		answers <- answer{value, err}
		if !ended.CompareAndSwap(false, true) {
			d.late.Add(-1)
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
	}
	d.late.Add(1)
	if !ended.CompareAndSwap(false, true) { // it has just been answered
		d.late.Add(-1)
		a := <-answers
		return a.value, a.err
	}
	var none T
	return none, context.Cause(ctx)
}

// Now is Within for a read, which answers from what it knows when the disk does not: it waits for half a second, and
// not at all while an earlier look is without an answer. So a list of ten thousand waits no longer than one.
func Now[T any](d *Disk, ask func() (T, error)) (T, error) {
	if d.late.Load() > 0 {
		var none T
		return none, ErrHangs
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), readWait, ErrHangs)
	defer cancel()
	return Within(ctx, d, ask)
}
