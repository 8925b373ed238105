package image

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/image/progress"
)

// TestFlightPanics has the work of a flight panic: all who share it get an error, and the next caller starts it anew.
func TestFlightPanics(t *testing.T) {
	var f singleflight[int]
	joined := make(chan struct{})
	breaks := func(context.Context, *progress.Listeners) (int, error) {
		<-joined
		panic("a bug")
	}
	first, _, leave := f.join("a", nil, breaks, nil)
	second, owner, leaveToo := f.join("a", nil, breaks, nil)
	if owner {
		t.Fatal("the second caller has work of its own")
	}
	close(joined)
	for _, fl := range []*flight[int]{first, second} {
		_, err := fl.wait(t.Context())
		if kindOf(err) != errdefs.ErrInternal || !strings.Contains(err.Error(), "a bug") {
			t.Errorf("it ends with %v", err)
		}
	}
	leave()
	leaveToo()
	f.land(t.Context())
	again, owner, leave := f.join("a", nil, func(context.Context, *progress.Listeners) (int, error) { return 7, nil }, nil)
	defer leave()
	if n, err := again.wait(t.Context()); !owner || n != 7 || err != nil {
		t.Errorf("after it: %d, %v", n, err)
	}
}

// TestKeyLockEnds waits for a lock that somebody has, until the context ends, and leaves nothing of the wait behind.
func TestKeyLockEnds(t *testing.T) {
	var k keyLocks
	unlock, err := k.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	end(gone)
	if _, err := k.lock(ended, "a"); !errors.Is(err, gone) {
		t.Errorf("error is %v", err)
	}
	waiting := make(chan error)
	go func() {
		unlock, err := k.lock(context.Background(), "a")
		if err == nil {
			unlock()
		}
		waiting <- err
	}()
	unlock()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if len(k.byKey) != 0 {
		t.Errorf("%d locks are left", len(k.byKey))
	}
}
