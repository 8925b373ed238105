package look

import (
	"context"
	"testing"
	"time"

	"berth/test/timeouts"
)

// TestDisks has one path hang for many callers: few calls wait for it, another path is answered, and nothing of either
// is kept when it is over.
func TestDisks(t *testing.T) {
	d, a := &Disks{}, asks{letGo: make(chan struct{})}
	for range 3 * AtOnce {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := WithinAt(ctx, d, "/hangs", a.hang); err == nil {
			t.Error("what hangs has answered")
		}
		cancel()
	}
	if n := a.waiting.Load(); n == 0 || n > AtOnce {
		t.Errorf("%d calls wait for the disk", n)
	}
	if got, err := WithinAt(t.Context(), d, "/answers", func() (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("another path: %d, %v", got, err)
	}
	close(a.letGo)
	for until := time.Now().Add(timeouts.For(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		left := len(d.at)
		d.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d paths are kept", left)
		}
	}
}
