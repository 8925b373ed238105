package look

import (
	"context"
	"testing"
	"time"

	"berth/test/timeouts"
)

// TestDisks has one path hang for many callers who leave at once: few calls wait for it, another path is answered, and
// nothing of either is kept when it is over.
func TestDisks(t *testing.T) {
	d, a := &Disks{}, asks{letGo: make(chan struct{})}
	gone, leave := context.WithCancel(t.Context())
	leave() // before their looks have begun
	for range 20 * AtOnce {
		if _, err := WithinAt(gone, d, "/hangs", a.hang); err == nil {
			t.Error("what hangs has answered")
		}
	}
	begin := time.Now().Add(timeouts.For(10 * time.Second))
	for a.waiting.Load() < AtOnce && time.Now().Before(begin) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond)
	if n := a.waiting.Load(); n != AtOnce {
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
