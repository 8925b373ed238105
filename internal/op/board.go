package op

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Owner is the object that a lane belongs to: a pod, or a container of one.
type Owner struct{ Pod, Container string }

// Board knows the operations that run in lanes, so that it can be asked which hang. Lanes write to the board of their
// base context; idle lanes cost nothing. No lock of an object is taken to read it, so it answers whatever an operation
// waits for.
type Board struct {
	mu   sync.Mutex // guards runs; a lane's mu may be held above it, never below
	runs map[*run]*Lane
}

type boardKey struct{}

// Under returns ctx with the board, as a base context of lanes.
func (b *Board) Under(ctx context.Context) context.Context {
	return context.WithValue(ctx, boardKey{}, b)
}

// boardOf returns the board of ctx. A nil board takes everything and keeps nothing.
func boardOf(ctx context.Context) *Board {
	b, _ := ctx.Value(boardKey{}).(*Board)
	return b
}

func (b *Board) add(l *Lane, r *run) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.runs == nil {
		b.runs = map[*run]*Lane{}
	}
	b.runs[r] = l
}

func (b *Board) remove(r *run) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.runs, r)
}

// Activity is an operation that holds a lane.
type Activity struct {
	Of    Owner
	Kind  string
	Since time.Time
	// Callers is how many wait for its end. An operation without callers goes on, unless it may be abandoned.
	Callers int
	// Ended says that it was told to end and has not done so yet.
	Ended bool
	// Queued are the kinds of operation that wait for the lane, by how many callers.
	Queued map[string]int
	// Steps are those of its plan that run at the moment, the oldest first.
	Steps []ActiveStep
}

// ActiveStep is a step that runs.
type ActiveStep struct {
	Plan, Step string
	Undo       bool
	Since      time.Time
}

// Activities returns the operations that run, the oldest first. It never waits for an operation.
func (b *Board) Activities() []Activity {
	b.mu.Lock()
	runs := maps.Clone(b.runs)
	b.mu.Unlock()
	all := make([]Activity, 0, len(runs))
	for r, l := range runs {
		all = append(all, l.activity(r))
	}
	slices.SortFunc(all, func(a, b Activity) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Of.Pod, b.Of.Pod), cmp.Compare(a.Of.Container, b.Of.Container))
	})
	return all
}

// trace has the steps that an operation is running.
type trace struct {
	mu    sync.Mutex // guards what follows; nothing else is locked below it
	next  int
	steps map[int]ActiveStep // by the order in which they began: those beside each other run at the same time
}

type traceKey struct{}

func traceOf(ctx context.Context) *trace {
	t, _ := ctx.Value(traceKey{}).(*trace)
	return t
}

// Trace returns base with the trace of ctx: for work of ctx's operation that goes on when ctx has ended, such as the
// undo of what was cut off.
func Trace(base, ctx context.Context) context.Context {
	if t := traceOf(ctx); t != nil {
		return context.WithValue(base, traceKey{}, t)
	}
	return base
}

// begin notes a step until end is called. A nil trace takes it and keeps nothing.
func (t *trace) begin(s ActiveStep) (end func()) {
	if t == nil {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = map[int]ActiveStep{}
	}
	n := t.next
	t.next++
	t.steps[n] = s
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.steps, n)
	}
}

// active returns the steps that run, in the order in which they began.
func (t *trace) active() []ActiveStep {
	t.mu.Lock()
	defer t.mu.Unlock()
	var steps []ActiveStep
	for _, n := range slices.Sorted(maps.Keys(t.steps)) {
		steps = append(steps, t.steps[n])
	}
	return steps
}
