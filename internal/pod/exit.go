package pod

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/op"
	"berth/internal/runtime"
)

// The reasons for an exit that kubelets and people know.
const (
	ReasonCompleted = "Completed"
	ReasonError     = "Error"
	ReasonOOM       = "OOMKilled"
	ReasonCannotRun = "ContainerCannotRun"
	ReasonUnknown   = "Unknown"
)

// ExitUnknown is the exit code of a process of whose end nobody could learn more.
const ExitUnknown = 255

// Exited tells that a process has ended. It is called by the driver, once an exit, in any order with the calls that
// started it.
func (s *Pods) Exited(podID, ctrID string, e runtime.Exit) {
	p := s.index.Load().pods[ID(podID)]
	if p == nil {
		return
	}
	if podID == ctrID {
		p.initExited(e)
		return
	}
	id := ID(ctrID)
	if p.tooEarly(id, e) {
		return
	}
	p.markExited(id, func(c *Container) { fillExit(c, e) })
	s.background(func(ctx context.Context) {
		if err := p.reapContainer(ctx, id); err != nil && ctx.Err() == nil {
			p.stuckContainer(id, err, func() error { return p.reapContainer(s.ctx, id) })
		}
	})
}

// tooEarly keeps an exit that came before the record said created: createContainer takes it up.
func (p *pod) tooEarly(id ID, e runtime.Exit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, live := p.rec.Load().container(id), p.containers[id]
	if c == nil || live == nil || c.State != Creating {
		return false
	}
	live.early = &e
	return true
}

// fillExit writes down how a process ended.
func fillExit(c *Container, e runtime.Exit) {
	c.ExitCode, c.FinishedAt = e.Code, e.FinishedAt
	if c.StartedAt.IsZero() && c.State != Created {
		c.StartedAt = e.StartedAt
	}
	switch {
	case e.Unknown:
		c.ExitCode, c.Reason = ExitUnknown, ReasonUnknown
		c.Message = "the process ended while neither its monitor nor the daemon could see how"
	case e.OOMKilled:
		c.Reason = ReasonOOM
	case e.Code == 0:
		c.Reason = ReasonCompleted
	default:
		c.Reason = ReasonError
	}
	if c.FinishedAt.IsZero() {
		c.FinishedAt = time.Now()
	}
}

// markExited moves a live container to exited. What is already exited stays as it is.
func (p *pod) markExited(id ID, fill func(*Container)) {
	err := p.settle("container.exited", func(r *Record) error {
		return r.edit(id, func(c *Container) error {
			if !c.live() {
				return nil
			}
			fill(c)
			return c.moveTo(Exited)
		})
	})
	if err != nil {
		p.s.cfg.Log.Error("an exit could not be recorded; the exit file keeps it for the next start", "pod", p.id, "container", id, "error", err)
		return
	}
	if live := p.container(id); live != nil {
		live.markExited()
	}
}

// initExited ends a pod whose own init is gone: the kernel has killed all that shared its PID namespace.
func (p *pod) initExited(runtime.Exit) {
	if p.rec.Load().State != Ready {
		return
	}
	p.s.cfg.Log.Warn("the init of a pod with a shared PID namespace ended; the pod is stopped", "pod", p.id)
	p.s.background(func(ctx context.Context) { _ = p.s.Stop(ctx, p.id) })
}

// reapContainer clears away what the runtime and the mounts hold of a container that has ended.
func (p *pod) reapContainer(ctx context.Context, id ID) error {
	live := p.container(id)
	if live == nil {
		return nil
	}
	return live.lane.Do(p.s.ctx, ctx, op.Op{Kind: opCtrReap, Run: func(ctx context.Context) error {
		c := p.rec.Load().container(id)
		if c == nil || c.State != Exited {
			return nil
		}
		if err := p.persist(); err != nil { // before the exit file, which says the same, is removed
			return err
		}
		if err := p.containerPlan(c, &building{}).BackwardTo(ctx, stepDirs); err != nil {
			return err
		}
		if c.Stuck == nil {
			return nil
		}
		return p.settle("container.reaped", func(r *Record) error {
			return r.edit(id, func(c *Container) error { c.Stuck = nil; return nil })
		})
	}})
}

// persist writes the record again where a full disk kept it from being written.
func (p *pod) persist() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.unwritten {
		return nil
	}
	return p.write("persist", p.rec.Load())
}

// StopContainer asks the container to end by its stop signal and kills it after timeout. A repeated call with a shorter
// timeout shortens the one in flight. A container that is not there, or has ended, is stopped already.
func (s *Pods) StopContainer(ctx context.Context, id ID, timeout time.Duration) error {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nilIfGone(err)
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	return p.stopContainer(ctx, id, timeout)
}

func (p *pod) stopContainer(ctx context.Context, id ID, timeout time.Duration) error {
	live := p.container(id)
	if live == nil {
		return nil
	}
	deadline := time.Now().Add(timeout)
	live.hurry.by(deadline)
	return live.lane.Do(p.s.ctx, ctx, op.Op{Kind: opCtrStop, Ends: endsBegin, Run: func(ctx context.Context) error {
		return p.endProcess(ctx, id, live, deadline)
	}})
}

// endProcess runs in the container's lane.
func (p *pod) endProcess(ctx context.Context, id ID, live *container, deadline time.Time) error {
	defer live.hurry.clear()
	c := p.rec.Load().container(id)
	if c == nil || !c.live() {
		return nil
	}
	pod, ctr := string(p.id), string(id)
	if c.State == Running && time.Until(deadline) > 0 {
		if err := p.s.cfg.Runtime.Signal(ctx, pod, ctr, c.StopSignal); err != nil {
			return fmt.Errorf("stop container %s: %w", id, err)
		}
		ended, err := live.hurry.wait(ctx, live.exited, deadline)
		if ended || err != nil {
			return err
		}
	}
	if err := p.s.cfg.Runtime.KillAll(ctx, pod, ctr); err != nil {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	ended, err := newHurry().wait(ctx, live.exited, time.Now().Add(killWait))
	if err == nil && !ended {
		err = fmt.Errorf("container %s (pid %d) was killed %v ago and has not ended: it hangs in the kernel, most likely on a mount that does not answer; see /proc/%d/stack",
			id, c.Process.PID, killWait, c.Process.PID)
	}
	return err
}

// RemoveContainer ends a container where it lives and removes all that is left of it but its log. A container that is
// not there is removed already.
func (s *Pods) RemoveContainer(ctx context.Context, id ID) error {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nilIfGone(err)
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	return p.removeContainer(ctx, id)
}

func (p *pod) removeContainer(ctx context.Context, id ID) error {
	live := p.container(id)
	if live == nil {
		return nil
	}
	live.hurry.by(time.Now()) // a stop in flight is not waited out
	return live.lane.Do(p.s.ctx, ctx, op.Op{Kind: opCtrRemove, Ends: endsBegin, Run: func(ctx context.Context) error {
		if err := p.endProcess(ctx, id, live, time.Now()); err != nil {
			return err
		}
		return p.undoContainer(ctx, id)
	}})
}

// stopSignal is the number of the signal that asks a container to end; SIGTERM when the image names none.
func stopSignal(name string) (int, error) {
	name = strings.ToUpper(strings.TrimSpace(name))
	if name == "" {
		return int(unix.SIGTERM), nil
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return n, nil
	}
	name = strings.TrimPrefix(name, "SIG")
	for prefix, base := range map[string]int{"RTMIN": 34, "RTMAX": 64} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			off, err := strconv.Atoi("0" + strings.TrimLeft(rest, "+-"))
			if strings.HasPrefix(rest, "-") {
				off = -off
			}
			if n := base + off; err == nil && n >= 34 && n <= 64 {
				return n, nil
			}
		}
	}
	if n := unix.SignalNum("SIG" + name); n > 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("stop signal %q is not a signal", name)
}
