package pod

import (
	"context"
	"time"
)

// retry calls again with growing pauses until it succeeds or the daemon ends, then calls done.
func (s *Pods) retry(again func() error, done func()) {
	s.background(func(ctx context.Context) {
		defer done()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.cfg.Retry.After(n)):
			}
			if again() == nil {
				return
			}
		}
	})
}

// hurry is a deadline that can be brought forward while something waits for it.
type hurry struct{ brought chan time.Time }

func newHurry() hurry { return hurry{make(chan time.Time, 1)} }

// by brings the deadline forward to at; a later one than what was asked for already changes nothing.
func (h hurry) by(at time.Time) {
	select {
	case earlier := <-h.brought:
		if earlier.Before(at) {
			at = earlier
		}
	default:
	}
	select {
	case h.brought <- at:
	default: // somebody else brought it forward meanwhile: the waiter takes the earliest it sees
	}
}

// wait returns nil when done is closed, or false when the deadline passes first.
func (h hurry) wait(ctx context.Context, done <-chan struct{}, deadline time.Time) (bool, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		select {
		case <-done:
			return true, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-timer.C:
			return false, nil
		case at := <-h.brought:
			if at.Before(deadline) {
				deadline = at
				timer.Reset(time.Until(at))
			}
		}
	}
}

// clear forgets what was asked of an earlier wait.
func (h hurry) clear() {
	select {
	case <-h.brought:
	default:
	}
}
