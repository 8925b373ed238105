package telemetry

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Step is one thing that was done at start.
type Step struct {
	Name string        // what was done
	At   time.Duration // when it was done, counted from the first moment of the timeline
	Took time.Duration // since the mark before
}

// Timeline tells where the time of a start goes. The zero value is ready, and begins at its first Mark unless Begin was
// called. Its methods may be called concurrently.
type Timeline struct {
	mu    sync.Mutex // guards what follows
	begin time.Time
	steps []Step
}

// Begin sets the moment that all steps are counted from.
func (t *Timeline) Begin(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin = at
}

// Mark says that name has just been done.
func (t *Timeline) Mark(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.begin.IsZero() {
		t.begin = now
	}
	step := Step{Name: name, At: now.Sub(t.begin)}
	step.Took = step.At
	if n := len(t.steps); n > 0 {
		step.Took -= t.steps[n-1].At
	}
	t.steps = append(t.steps, step)
}

// Steps are the marks so far, in their order.
func (t *Timeline) Steps() []Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.steps)
}

// LogValue shows the steps as one group of a log line: how long each took.
func (t *Timeline) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, s := range t.Steps() {
		attrs = append(attrs, slog.Duration(s.Name, s.Took))
	}
	return slog.GroupValue(attrs...)
}
