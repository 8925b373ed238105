package pod

import (
	"strings"
	"testing"

	"berth/internal/record"
	"berth/internal/sandbox"
)

// TestWritesAreTimedByTheMonotonicClock wants the beginning of a write to be known by a clock that nobody sets: how
// long an exit or a stop waits for the disk is reckoned from it.
func TestWritesAreTimedByTheMonotonicClock(t *testing.T) {
	l := &ledger{dirty: func(string) {}}
	l.put = func(string, *sandbox.Record, int) error {
		if began := l.writing.Load(); began == nil || !strings.Contains(began.String(), " m=") {
			t.Errorf("a write that is under way began at %v", began)
		}
		return nil
	}
	if err := writeRecord(l, "test", &sandbox.Record{}, record.MaxSize); err != nil || l.writing.Load() != nil {
		t.Errorf("after the write: %v, %v", l.writing.Load(), err)
	}
}
