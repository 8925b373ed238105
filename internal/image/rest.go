package image

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/image/slots"
)

// slowRest is the speed, in bytes a second, below which reading the rest of a useless blob is given up.
const slowRest = 1 << 20

// rest bounds the time for reading the rest of a blob that cannot be unpacked. It is read only to verify the digest,
// and only while it arrives fast enough.
type rest struct {
	transfer *slots.Transfer // nil if no host sends the blob
	end      context.CancelCauseFunc
	look     time.Duration
	given    atomic.Bool // set when reading was given up
	over     chan struct{}
}

var errSlowRest = errors.New("the rest of it comes too slowly")

func restOf(content io.ReadCloser, end context.CancelCauseFunc, look time.Duration) *rest {
	r := &rest{end: end, look: look, over: make(chan struct{})}
	if c, ok := content.(pacedContent); ok {
		r.transfer = c.transfer
	}
	return r
}

// bound gives reading up as soon as it is slow, from now on.
func (r *rest) bound() {
	if r == nil || r.transfer == nil {
		return
	}
	go func() {
		tick := time.NewTicker(r.look)
		defer tick.Stop()
		for pace := newPace(r.transfer); ; {
			select {
			case <-r.over:
				return
			case <-tick.C:
			}
			if pace.rate() < slowRest {
				r.given.Store(true)
				r.end(errSlowRest)
				return
			}
		}
	}()
}

func (r *rest) stop() { close(r.over) }

func (r *rest) gaveUp() bool { return r != nil && r.given.Load() }

// unproven is the error of a blob that cannot be unpacked and was not read to its end, so that its digest is not known.
func unproven(err error) error {
	return fail.New(crierrors.ErrRegistryUnavailable,
		"it cannot be unpacked, and the rest of it comes too slowly to tell whether it is what was promised: %w", err)
}

// defaultLook is the period over which the speed of a transfer is measured.
const defaultLook = 2 * time.Second

// pace measures the speed of a transfer between calls of rate.
type pace struct {
	transfer *slots.Transfer
	at       time.Time
	bytes    int64
}

func newPace(t *slots.Transfer) *pace { return &pace{t, time.Now(), t.Received()} }

// rate returns the speed since the last call, in bytes a second.
func (p *pace) rate() float64 {
	now, bytes := time.Now(), p.transfer.Received()
	rate := float64(bytes-p.bytes) / now.Sub(p.at).Seconds()
	p.at, p.bytes = now, bytes
	return rate
}
