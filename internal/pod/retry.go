package pod

import (
	"context"
	"errors"
	"sync"
	"time"

	"berth/internal/op"
)

// worker runs what goes on in the background, under the daemon's context.
type worker struct {
	ctx    context.Context // the daemon's: all work derives from it
	cancel context.CancelFunc
	pauses op.Backoff // between tries

	last func() // is called at the end of Close

	gate  sync.Mutex // held while work begins, so that none does once Close waits for its end
	group sync.WaitGroup
}

// close cuts off what is under way, and waits for its end.
func (w *worker) close() {
	w.gate.Lock()
	w.cancel()
	w.gate.Unlock()
	w.group.Wait()
	if w.last != nil {
		w.last()
	}
}

// background runs fn, unless the daemon is ending.
func (w *worker) background(fn func(context.Context)) {
	w.gate.Lock()
	defer w.gate.Unlock()
	if w.ctx.Err() == nil {
		w.group.Go(func() { fn(w.ctx) })
	}
}

// retry calls again with growing pauses until it succeeds or the daemon ends.
func (w *worker) retry(again func() error) {
	w.background(func(ctx context.Context) {
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(w.pauses.After(n)):
			}
			if again() == nil {
				return
			}
		}
	})
}

// retrier tries something again in the background, for all who ask for it, until it has succeeded since the last of
// them asked.
type retrier struct {
	mu    sync.Mutex // guards what follows; nothing else is locked below it but the worker's gate
	going bool
	asked int
}

// ask has something tried again that has failed. It reports whether the tries begin with this call; if they go on
// already, again is not used.
func (p *retrier) ask(w *worker, again func() error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.going {
		return false
	}
	p.going = true
	w.retry(func() error {
		p.mu.Lock()
		asked := p.asked
		p.mu.Unlock()
		if err := again(); err != nil {
			return err
		}
		return p.rest(asked)
	})
	return true
}

// rest ends the tries, unless more were asked for since the last one began.
func (p *retrier) rest(asked int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked != asked {
		return errors.New("it has failed elsewhere meanwhile")
	}
	p.going = false
	return nil
}

// stopDeadline is a deadline that can be brought forward while something waits for it.
type stopDeadline struct{ brought chan time.Time }

func newStopDeadline() stopDeadline { return stopDeadline{make(chan time.Time, 1)} }

// entered is for an operation that ends at a deadline. One that begins has no other: what was asked of one before it is
// forgotten, whether that came to its wait or not. A caller that finds one under way brings its deadline forward.
func (h stopDeadline) entered(deadline time.Time) func(begins bool) {
	return func(begins bool) {
		if begins {
			h.clear()
			return
		}
		h.by(deadline)
	}
}

// by brings the deadline forward to at; a later one than what was asked for already changes nothing.
func (h stopDeadline) by(at time.Time) {
	for {
		select {
		case earlier := <-h.brought:
			if earlier.Before(at) {
				at = earlier
			}
		default:
		}
		select {
		case h.brought <- at:
			return
		default: // another caller brought it forward meanwhile, perhaps to a later time
		}
	}
}

// wait returns nil when done is closed, or false when the deadline passes first.
func (h stopDeadline) wait(ctx context.Context, done <-chan struct{}, deadline time.Time) (bool, error) {
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
func (h stopDeadline) clear() {
	select {
	case <-h.brought:
	default:
	}
}
