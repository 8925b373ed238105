package image

import (
	"context"
	"errors"
	"testing"
)

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
