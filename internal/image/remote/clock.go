package remote

import (
	"context"
	"math/rand/v2"
	"time"
)

// clock is time, for backoff and stalls; tests have their own.
type clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stopped before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// sleep waits, or returns the cause of ctx's end.
func sleep(ctx context.Context, c clock, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	over := make(chan struct{})
	defer c.AfterFunc(d, func() { close(over) })()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	firstBackoff = 100 * time.Millisecond
	mostBackoff  = 5 * time.Second
)

// backoff is how long to wait after the n-th failure in a row: twice as long each time, less up to half of it, so that
// clients that failed together do not come back together.
func backoff(n int) time.Duration {
	d := mostBackoff
	if n < 7 {
		d = min(mostBackoff, firstBackoff<<max(0, n-1))
	}
	return d/2 + rand.N(d/2)
}
