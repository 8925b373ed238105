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

// slowRest is how many bytes a second are too few for content that cannot be used, and is only read to know whether it
// is what was promised.
const slowRest = 1 << 20

// rest bounds the time for what is left of a blob that cannot be unpacked. It is read to know whether the blob is what
// was promised, for as long as it comes fast enough.
type rest struct {
	transfer *slots.Transfer // nil for what no host sends
	end      context.CancelCauseFunc
	look     time.Duration
	given    atomic.Bool // up
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

// bound gives up reading when it is slow from now on.
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

// unproven is the error of a blob that cannot be unpacked, and that was not read far enough to compare its digest.
func unproven(err error) error {
	return fail.New(crierrors.ErrRegistryUnavailable,
		"it cannot be unpacked, and the rest of it comes too slowly to tell whether it is what was promised: %w", err)
}

// defaultLook is over how much time a transfer is judged.
const defaultLook = 2 * time.Second

// pace tells how fast a transfer is, look by look.
type pace struct {
	transfer *slots.Transfer
	at       time.Time
	bytes    int64
}

func newPace(t *slots.Transfer) *pace { return &pace{t, time.Now(), t.Received()} }

// rate returns bytes a second since the last look.
func (p *pace) rate() float64 {
	now, bytes := time.Now(), p.transfer.Received()
	rate := float64(bytes-p.bytes) / now.Sub(p.at).Seconds()
	p.at, p.bytes = now, bytes
	return rate
}
