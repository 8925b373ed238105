package layer

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// TestWideWindowsGiveWay has one stream after another hold all memory for large windows. Who waits gets it from one
// whose source is slow, and from nobody else.
func TestWideWindowsGiveWay(t *testing.T) {
	b := newWindowBudget(1, 10*time.Millisecond)
	hold := func(slow bool) (ctx context.Context, release func()) {
		ctx, end := context.WithCancelCause(t.Context())
		ctx = WithHolder(ctx, &Holder{IsSlow: func() bool { return slow }, End: end})
		release, err := b.acquire(ctx, limit.ZstdWindow.Limit)
		if err != nil {
			t.Fatal(err)
		}
		return ctx, release
	}
	slow, release := hold(true)
	go func() {
		<-slow.Done()
		release()
	}()
	fast, release := hold(false)
	if !errors.Is(context.Cause(slow), ErrGaveWay) {
		t.Errorf("the slow one ended by %v", context.Cause(slow))
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.acquire(short, OrdinaryWindow+1); !errors.Is(err, context.DeadlineExceeded) || fast.Err() != nil {
		t.Errorf("%v, and the fast one ended by %v", err, context.Cause(fast))
	}
	release()
	last, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if release, err := b.acquire(last, OrdinaryWindow+1); err != nil { // without a holder
		t.Error(err)
	} else {
		release()
	}
	if len(b.holders.all) != 0 {
		t.Errorf("%d streams are remembered", len(b.holders.all))
	}
}
