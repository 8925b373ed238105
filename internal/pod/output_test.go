package pod

import (
	"testing"

	"berth/internal/limit"
)

// TestOutputsShareTheirRoom has execs print more than all may keep: each has its own beginning, and ends without a gap.
func TestOutputsShareTheirRoom(t *testing.T) {
	of := &outputs{}
	write := func(c *capture, n int) {
		t.Helper()
		if got, err := c.Write(make([]byte, n)); got != n || err != nil {
			t.Fatalf("%d of %d, %v", got, n, err)
		}
	}
	of.used.Store(limit.ExecOutputs.Limit - 1000)
	first, second := &capture{of: of}, &capture{of: of}
	write(first, ownOutput)
	write(second, ownOutput+600)
	if of.used.Load() != limit.ExecOutputs.Limit-400 || second.lost != 0 {
		t.Errorf("%d are used, %d lost", of.used.Load(), second.lost)
	}
	write(first, 500)
	if len(first.data) != ownOutput+400 || first.lost != 100 {
		t.Errorf("%d are kept, %d lost", len(first.data), first.lost)
	}
	second.release()
	second.release()
	write(first, 10)
	if len(first.data) != ownOutput+400 || first.lost != 110 {
		t.Errorf("behind a gap %d are kept, %d lost", len(first.data), first.lost)
	}
	first.release()
	if got := of.used.Load(); got != limit.ExecOutputs.Limit-1000 {
		t.Errorf("%d are used after the end", got)
	}
}
