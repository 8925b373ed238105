package sandbox

import (
	"testing"
	"time"

	"berth/internal/runtime"
)

// TestQuickEnd has a container end before the daemon knows that it has started: it began before it ended.
func TestQuickEnd(t *testing.T) {
	began := time.Unix(100, 0)
	e := runtime.Exit{StartedAt: began, FinishedAt: began.Add(time.Millisecond)}
	for name, c := range map[string]struct {
		told, want time.Time
		state      State
	}{
		"told in time":    {began.Add(time.Microsecond), began.Add(time.Microsecond), Running},
		"told too late":   {began.Add(time.Second), began, Running},
		"not told at all": {time.Time{}, began, Starting},
		"never started":   {time.Time{}, time.Time{}, Created},
	} {
		got := &Container{StartedAt: c.told, State: c.state}
		FillExit(got, e)
		if !got.StartedAt.Equal(c.want) || got.FinishedAt.Before(got.StartedAt) {
			t.Errorf("%s: from %v to %v; wanted from %v", name, got.StartedAt, got.FinishedAt, c.want)
		}
	}
}
