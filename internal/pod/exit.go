package pod

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/process"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// Exited tells that a process has ended. It is called by the driver, once an exit, in any order with the calls that
// started it.
func (s *Pods) Exited(podID, ctrID string, e runtime.Exit) {
	p := s.Catalog.index.Load().pods[sandbox.ID(podID)]
	if p == nil {
		return
	}
	if podID == ctrID {
		p.initExited()
		return
	}
	l := p.containers.get(sandbox.ID(ctrID))
	if l == nil || l.tooEarly(e) {
		return
	}
	l.endedBy(e)
	s.worker.background(l.reapOrRetry)
}

// reapOrRetry reaps, in the background until it succeeds.
func (l *container) reapOrRetry(ctx context.Context) {
	if err := l.reap(ctx); err != nil && ctx.Err() == nil {
		l.stuck(err)
	}
}

// tooEarly keeps an exit that came before the record said created: create takes it up.
func (l *container) tooEarly(e runtime.Exit) (early bool) {
	l.p.hold(func(r *sandbox.Record) {
		if c := r.Container(l.id); c != nil && c.State == sandbox.Creating {
			l.early, early = &e, true
		}
	})
	return early
}

// endedBy is ended for an exit that a monitor has told of, in whatever way.
func (l *container) endedBy(e runtime.Exit) {
	// The kernel had killed one of its processes for memory earlier, and it had gone on: see willKill.
	e.OOMKilled = e.OOMKilled && !l.killed.Load()
	l.ended(func(c *sandbox.Container) { sandbox.FillExit(c, e) })
}

// ended moves a live container to exited, and does nothing if it is exited already.
func (l *container) ended(fill func(*sandbox.Container)) {
	var killed bool
	_, err := l.p.publishAsync("container.exited", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if !c.Live() {
				return nil
			}
			fill(c)
			killed = c.Reason == sandbox.ReasonOOM
			return c.MoveTo(sandbox.Exited)
		})
	})
	if err != nil {
		l.cfg.Log.Error("an exit could not be recorded; the exit file keeps it for the next start", "pod", l.p.id,
			"container", l.id, "error", err)
		return
	}
	if killed {
		l.p.s.oomKills.Add(1)
	}
	l.once.Do(func() { close(l.exited) })
}

// initExited ends a pod whose own container has ended. The kernel has killed all that shared its PID namespace, a
// sandboxed runtime all that was in the sandbox, and a pod that has to have a pid has none any more. While the pod is
// being made, create notices.
func (p *pod) initExited() {
	p.initEnded.Store(true)
	if p.rec.Load().State != sandbox.Ready {
		return
	}
	p.cfg.Log.Warn("the container that stands for a pod has ended; the pod is stopped", "pod", p.id)
	p.work.background(func(ctx context.Context) { _ = stopPod(ctx, p) })
}

// reap deletes a container that has ended from the runtime, and unmounts what it had mounted.
func (l *container) reap(ctx context.Context) error {
	return l.lane.Do(l.work.ctx, ctx, op.Op{Kind: opCtrReap, Run: func(ctx context.Context) error {
		c := l.record()
		if c == nil || !c.Unreaped() {
			return nil
		}
		l.notifier.containerEnded(ctx, l)
		b := l.plan(c)
		if err := l.p.persist(); err != nil {
			if !ofDisk(err) {
				return err
			}
			b.keepExit = true // a disk that takes nothing keeps no pod from being stopped
		}
		if err := b.steps().BackwardTo(ctx, stepDirs); err != nil {
			return err
		}
		if b.keepExit && c.Stuck == nil {
			return nil
		}
		return l.p.publish("container.reaped", func(r *sandbox.Record) error {
			return r.Edit(l.id, func(c *sandbox.Container) error {
				c.Stuck, c.Reaped = nil, !b.keepExit // the exit file is still to be removed
				return nil
			})
		})
	}})
}

// StopContainer asks the container to end by its stop signal and kills it after timeout. A repeated call with a shorter
// timeout shortens the one in flight. Stopping a container that is unknown or has ended succeeds, as CRI requires.
// Afterwards it does not start again by its restart policy.
func (s *Pods) StopContainer(ctx context.Context, id sandbox.ID, timeout time.Duration) error {
	l, err := s.Catalog.adopted(ctx, id)
	if err != nil {
		return sandbox.NilIfGone(err)
	}
	noteContainerStop(l)
	return l.stop(ctx, timeout)
}

// noteContainerStop has the record of a pod of berth run say that a client asked for the container's end.
func noteContainerStop(l *container) {
	if r := l.p.record(); !r.ByHand() || r.StopAsked {
		return
	}
	_, _ = l.p.publishAsync("container.stop-asked", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			c.StopAsked = true
			return nil
		})
	})
}

func (l *container) stop(ctx context.Context, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	o := op.Op{Kind: opCtrStop, Ends: endsBegin, Entered: l.deadline.entered(deadline)}
	o.Run = func(ctx context.Context) error {
		if err := l.end(ctx, deadline); err != nil {
			return err
		}
		l.notifier.containerEnded(ctx, l)
		return nil
	}
	return l.lane.Do(l.work.ctx, ctx, o)
}

// end runs in the container's lane. It depends on no monitor: where a monitor does not answer, the kernel does.
func (l *container) end(ctx context.Context, deadline time.Time) error {
	c := l.record()
	if c == nil || !c.Live() {
		return nil
	}
	if c.State == sandbox.Running && time.Until(deadline) > 0 {
		if ended, err := ask(ctx, l, c, deadline); ended || err != nil {
			return err
		}
	}
	pod, ctr := string(l.p.id), string(l.id)
	willKill(l, c)
	if err := l.runtime.KillAll(ctx, pod, ctr); err != nil {
		notKilled(l, c)
		return fail.About(fail.Detail{Pod: pod, Container: ctr}, "kill container %s: %w", l.id, err)
	}
	kill, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	if err := l.runtime.AwaitExit(kill, pod, ctr); err != nil && !closed(l.exited) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fail.About(fail.Detail{Pod: pod, Container: ctr}, "container %s was killed and has not ended: %s: %w", l.id,
			process.Describe(c.Process.PID, c.Process.StartTime), err)
	}
	ended, err := newStopDeadline().wait(ctx, l.exited, time.Now().Add(killWait))
	if err == nil && !ended {
		err = fail.About(fail.Detail{Pod: pod, Container: ctr},
			"container %s has ended, and its exit could not be recorded in %v", l.id, killWait)
	}
	return err
}

// willKill notes that a container is about to be killed because somebody asks for that. If it lives until then its end
// is not one by the kernel for want of memory, also where the kernel killed one of its processes before. l is nil where
// nothing is known of the container but its record.
func willKill(l *container, c *sandbox.Container) {
	if l != nil && c.Live() && process.Alive(c.Process.PID, c.Process.StartTime) {
		l.killed.Store(true)
	}
}

// notKilled takes that back where the kill has failed and the container lives on.
func notKilled(l *container, c *sandbox.Container) {
	if l != nil && c.Live() && process.Alive(c.Process.PID, c.Process.StartTime) {
		l.killed.Store(false)
	}
}

// ask sends a container its stop signal and says whether it ends before the deadline. One to which the signal could not
// be sent has the same time before it is killed.
func ask(ctx context.Context, l *container, c *sandbox.Container, deadline time.Time) (ended bool, err error) {
	pod, ctr := string(l.p.id), string(l.id)
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() { _ = l.runtime.AwaitExit(ctx, pod, ctr) }) // so that a monitor that hangs does not hide the end
	if c.StopSignal == int(unix.SIGKILL) {
		willKill(l, c)
	}
	if err := l.runtime.Signal(ctx, pod, ctr, c.StopSignal); err != nil && ctx.Err() == nil {
		notKilled(l, c)
		l.cfg.Log.Warn("a container could not be sent its stop signal; it is killed at its deadline",
			"pod", pod, "container", ctr, "error", err)
	}
	return l.deadline.wait(ctx, l.exited, deadline)
}

// closed reports whether a channel is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// RemoveContainer ends a container where it lives and removes all that is left of it but its log. Removing an unknown
// container succeeds, as CRI requires. Neither it nor an attempt before it starts again by its restart policy.
func (s *Pods) RemoveContainer(ctx context.Context, id sandbox.ID) error {
	l, err := s.Catalog.adopted(ctx, id)
	if err != nil {
		return sandbox.NilIfGone(err)
	}
	noteContainerRemoval(l)
	return l.remove(ctx)
}

// noteContainerRemoval is noteContainerStop for a removal. It is noted in the attempts before as well: one of them is
// kept for its log, and is the last when l is gone.
func noteContainerRemoval(l *container) {
	c := l.record()
	if c == nil || !l.p.record().ByHand() {
		return
	}
	m := c.Config.Get().GetMetadata()
	for _, p := range append(sandboxesBefore(l.p), l.p) {
		for _, c := range p.record().Containers {
			of, before := c.Config.Get().GetMetadata(), p.containers.get(c.ID)
			if before != nil && of.GetName() == m.GetName() && of.GetAttempt() <= m.GetAttempt() {
				noteContainerStop(before)
			}
		}
	}
}

func (l *container) remove(ctx context.Context) error {
	o := op.Op{Kind: opCtrRemove, Ends: endsBegin}
	o.Entered = l.deadline.entered(time.Now()) // a stop in flight is not waited out
	o.Run = func(ctx context.Context) error {
		if err := l.end(ctx, time.Now()); err != nil {
			return err
		}
		l.notifier.containerEnded(ctx, l)
		return l.undo(ctx)
	}
	return l.lane.Do(l.work.ctx, ctx, o)
}
