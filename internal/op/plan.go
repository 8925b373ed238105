// Package op runs operations: plans of steps that go forward and backward, one operation at a time on each object,
// joined by callers that ask for the same and ended by those that may.
//
// A Plan is walked forward to make something and backward to unmake it; a failed create, a stop, a removal and recovery
// all walk the same plan backward. A Lane runs the operations of one object. Work belongs to the daemon: a caller's
// context ends its waiting, never the work.
package op

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/fault"
)

// DefaultDeadline bounds one direction of a step that states no deadline of its own.
const DefaultDeadline = 2 * time.Minute

// Step is one thing that a plan makes. Do and Undo may each be run any number of times, also after a crash in the
// middle of either: Do succeeds when the thing is there, Undo succeeds when it is not.
type Step struct {
	Name     string
	Do, Undo func(context.Context) error // nil where there is nothing to do
	Deadline time.Duration               // of each direction; DefaultDeadline when zero
	// Beside lets Do run while the following steps run. It is waited for before the first step that has Joins set, and at
	// the end.
	Beside bool
	// Joins makes the step wait for all that runs beside.
	Joins bool
}

// Plan is a list of steps, in the order in which they are made. It passes the fault points
// <plan>.<step>.{do,undo}.{before,after}.
type Plan struct {
	Name  string
	Steps []Step
	// Seen, unless nil, is told of each step that was run, how long it took and how it ended.
	Seen func(plan, step string, undo bool, took time.Duration, err error)
}

// StepError says at which step of which plan something failed.
type StepError struct {
	Plan, Step string
	Undo       bool
	Err        error
}

func (e *StepError) Error() string {
	if e.Undo {
		return fmt.Sprintf("%s: undo step %s: %v", e.Plan, e.Step, e.Err)
	}
	return fmt.Sprintf("%s: step %s: %v", e.Plan, e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// Details returns the step.
func (e *StepError) Details() fail.Detail {
	if e.Undo {
		return fail.Detail{Step: e.Plan + ": undo " + e.Step}
	}
	return fail.Detail{Step: e.Plan + ": " + e.Step}
}

// endedError is the error of a step whose context had ended, and the cause of that.
type endedError struct{ err, cause error }

func (e *endedError) Error() string { return fmt.Sprintf("%v (%v)", e.err, e.cause) }

// Unwrap returns both. If another operation has ended the step, the cause comes first, because the step's own error is
// then of no use to a caller. After a deadline the step's own error comes first.
func (e *endedError) Unwrap() []error {
	if fail.Is(e.cause, errdefs.ErrAborted) {
		return []error{e.cause, e.err}
	}
	return []error{e.err, e.cause}
}

// Forward runs every Do in order and stops at the first that fails; what ran beside has ended when it returns. It
// undoes nothing: the caller decides on which clock Backward runs.
func (p Plan) Forward(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var beside []chan error
	join := func() (err error) {
		for _, done := range beside {
			err = errors.Join(err, <-done)
		}
		beside = nil
		return err
	}
	do := func(s Step) error {
		if s.Do == nil {
			return nil
		}
		r, err := p.begin(ctx, s, false)
		if err == nil {
			err = s.Do(r.ctx)
		}
		return r.end(err)
	}
	var failed error
	for _, s := range p.Steps {
		if failed == nil && s.Joins {
			failed = join()
		}
		if failed == nil {
			failed = context.Cause(ctx)
		}
		if failed != nil {
			break
		}
		if s.Beside {
			done := make(chan error, 1)
			beside = append(beside, done)
			go unpanicked(p.Name+": step "+s.Name, func() error { return do(s) }, func(err error) {
				if err != nil {
					cancel(err) // what the others do is in vain
				}
				done <- err
			})
			continue
		}
		failed = do(s)
	}
	cause := context.Cause(ctx)
	if failed != nil {
		cancel(failed)
	}
	joined := join()
	switch {
	case cause != nil: // the first failure, of which the others are only echoes
		return cause
	case failed != nil:
		return failed
	}
	return joined
}

// Backward runs every Undo from the last to the first, and stops at the first that fails: what is made later may need
// what was made earlier in order to be unmade.
func (p Plan) Backward(ctx context.Context) error { return p.BackwardTo(ctx, "") }

// BackwardTo is Backward down to, and without, the step named keep.
func (p Plan) BackwardTo(ctx context.Context, keep string) error {
	for i := len(p.Steps) - 1; i >= 0; i-- {
		s := p.Steps[i]
		if s.Name == keep {
			return nil
		}
		if s.Undo == nil {
			continue
		}
		r, err := p.begin(ctx, s, true)
		if err == nil {
			err = s.Undo(r.ctx)
		}
		if err = r.end(err); err != nil {
			return err
		}
	}
	return nil
}

// running is a step on its way, in one direction.
type running struct {
	p     Plan
	s     Step
	undo  bool
	ctx   context.Context // of the step
	began time.Time
	stop  func()
}

// begin gives a step its deadline and its place in the trace, and passes the point before it. end must follow.
func (p Plan) begin(ctx context.Context, s Step, undo bool) (*running, error) {
	limit := cmp.Or(s.Deadline, DefaultDeadline)
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("not done after %v: %w", limit, context.DeadlineExceeded))
	r := &running{p: p, s: s, undo: undo, ctx: ctx, began: time.Now()}
	leave := traceOf(ctx).begin(ActiveStep{Plan: p.Name, Step: s.Name, Undo: undo, Since: r.began})
	r.stop = func() {
		leave()
		cancel()
	}
	return r, fault.At(r.point() + ".before")
}

// point is the step's fault point.
func (r *running) point() string {
	if r.undo {
		return r.p.Name + "." + r.s.Name + ".undo"
	}
	return r.p.Name + "." + r.s.Name + ".do"
}

// end reports to Seen how the step ended, passes the point after it, and names the step in the error.
func (r *running) end(err error) error {
	defer r.stop()
	if r.p.Seen != nil {
		r.p.Seen(r.p.Name, r.s.Name, r.undo, time.Since(r.began), err)
	}
	if err == nil {
		err = fault.At(r.point() + ".after")
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(r.ctx); cause != nil && !errors.Is(err, cause) {
		err = &endedError{err, cause}
	}
	return &StepError{r.p.Name, r.s.Name, r.undo, err}
}
