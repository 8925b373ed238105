package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"berth/internal/op"
	"berth/internal/process"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// Recover adopts what runs, finishes or undoes what was under way, and then sweeps what no record owns. It goes on
// while requests are served: a request for a pod that is not adopted yet waits for that pod alone. done is closed when
// every pod is adopted.
func (s *Pods) Recover() (done <-chan struct{}) {
	adopted := make(chan struct{})
	adoptions := make(chan struct{}, adoptionsAtOnce)
	resumptions := make(chan struct{}, 2*goruntime.GOMAXPROCS(0))
	s.worker.background(func(ctx context.Context) {
		limitAdopted(ctx, s)
		go s.Meter.Storage.Watch(ctx) // Close does not wait for those who may stand before a disk that hangs
	})
	if s.bundle.Projects {
		go s.Meter.Strays.Watch(s.worker.ctx)
	}
	s.worker.background(func(ctx context.Context) {
		var all sync.WaitGroup
		for _, p := range s.Catalog.index.Load().pods {
			all.Go(func() {
				_ = op.InTurn(ctx, adoptions, adoptionTime, func(ctx context.Context) error {
					adoptFirst(ctx, p)
					return nil
				})
				s.worker.background(func(ctx context.Context) {
					_ = op.InTurn(ctx, resumptions, slotTime, func(ctx context.Context) error {
						resume(ctx, p)
						return nil
					})
				})
			})
		}
		all.Wait()
		close(adopted)
		newSweeper(s).sweep(ctx)
	})
	return adopted
}

// adoptFirst adopts a pod after the daemon's start.
func adoptFirst(ctx context.Context, p *pod) {
	if err := keepLayers(p, nil); err != nil {
		p.cfg.Log.Warn("a pod's identity is not written; it is tried again with the next container",
			"pod", p.id, "error", err)
	}
	_ = p.lane.Do(p.work.ctx, ctx, op.Op{Kind: opAdopt, Run: func(ctx context.Context) error { return adopt(ctx, p) }})
}

// The adoption of a pod asks its monitor, which takes a millisecond or two. adoptionsAtOnce bounds how many do so at
// once. One that has taken adoptionTime lets the next begin: a monitor that answers nothing delays its own pod alone.
const (
	adoptionsAtOnce = 16
	adoptionTime    = 500 * time.Millisecond
)

// slotTime bounds how long the resumption of one pod keeps others from theirs: one that hangs delays itself alone.
const slotTime = 5 * time.Second

// adopt finds out what still lives of a pod of an earlier daemon. It runs in the pod's lane.
func adopt(ctx context.Context, p *pod) error {
	select {
	case <-p.adopted:
		return nil // a pod made by this daemon
	default:
	}
	defer close(p.adopted)
	r := p.rec.Load()
	if r.Boot != p.cfg.Boot {
		return rebooted(p, r)
	}
	if r.State != sandbox.Ready && r.State != sandbox.Stopping {
		return nil
	}
	if vanished(p, r) {
		p.cfg.Log.Warn("nothing is left of what lived of a pod, and the boot is the same, as where the node is a container "+
			"that was restarted: the pod is stopped", "pod", p.id)
		return rebooted(p, r)
	}
	err := takeInventory(ctx, p)
	if err != nil {
		p.cfg.Log.Error("a pod's monitor could not be adopted: its containers run on, unwatched; it is tried again", "pod",
			p.id, "error", err)
		p.work.retry(func() error { return adoptAgain(p) })
	}
	return err
}

// vanished reports whether the run directory of a pod is gone with all its processes. A node that is a container has
// the boot id of its host, which is the same when the node was restarted.
func vanished(p *pod, r *sandbox.Record) bool {
	if _, err := os.Lstat(p.cfg.Run(p.id)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return !slices.ContainsFunc(r.Containers, func(c *sandbox.Container) bool {
		return c.Live() && process.Alive(c.Process.PID, c.Process.StartTime)
	})
}

// adoptAgain tries again, in the pod's lane, because a pod that was stopped meanwhile needs no monitor, and must not
// get one.
func adoptAgain(p *pod) error {
	return p.lane.Do(p.work.ctx, p.work.ctx, op.Op{Kind: opAdopt, Run: func(ctx context.Context) error {
		if r := p.rec.Load(); p.gone() || r.State != sandbox.Ready && r.State != sandbox.Stopping {
			return nil
		}
		if err := takeInventory(ctx, p); err != nil {
			return err
		}
		for _, c := range p.rec.Load().Containers {
			if l := p.containers.get(c.ID); l != nil && c.Unreaped() {
				p.work.background(l.reapOrRetry)
			}
		}
		return nil
	}})
}

// readExits takes over the exits that a monitor has written down while no daemon ran, so that the first answer is true.
func readExits(p *pod) {
	r := p.rec.Load()
	if r.Boot != p.cfg.Boot {
		return // adopt sees to it
	}
	for _, c := range r.Containers {
		if !c.Live() {
			continue
		}
		e, err := runtime.ReadExit(p.cfg.RunExit(p.id, c.ID))
		if err == nil && !e.Draining {
			p.containers.get(c.ID).endedBy(e)
		}
	}
}

// takeInventory adopts the pod's monitor and brings the record up to what it says. What was created after it was asked
// is not in its answer and not judged by it. A container that the monitor does not know has ended, unless its process
// lives: the monitor may have been without a descriptor when it looked, and the error has it asked again.
func takeInventory(ctx context.Context, p *pod) error {
	asked := p.rec.Load().Containers
	inv, err := p.runtime.Adopt(ctx, string(p.id))
	if err != nil {
		return err
	}
	var unknown []sandbox.ID
	for _, c := range asked {
		l := p.containers.get(c.ID)
		if l == nil || !c.Live() {
			continue
		}
		found, ok := inv.Containers[string(c.ID)]
		switch {
		case !ok && process.Alive(c.Process.PID, c.Process.StartTime):
			unknown = append(unknown, c.ID)
		case !ok || found.State == runtime.Exited && found.Exit == nil:
			l.endedBy(runtime.Exit{Unknown: true})
		case found.State == runtime.Exited:
			l.endedBy(*found.Exit)
		case found.State == runtime.Running && c.State != sandbox.Running:
			foundRunning(p, l, found.StartedAt)
		case found.State == runtime.Created && c.State == sandbox.Starting && !c.StopAsked:
			goOnStarting(p, l)
		}
	}
	if r := p.rec.Load(); r.HasInit() {
		found, ok := inv.Containers[string(p.id)]
		switch {
		case !ok && process.Alive(r.Init.PID, r.Init.StartTime):
			unknown = append(unknown, p.id)
		case !ok || found.State == runtime.Exited:
			p.initExited()
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("the monitor does not know containers %v, whose processes live: what it lacked when it took over "+
			"is in m.log in %s", unknown, p.cfg.Run(p.id))
	}
	return nil
}

// goOnStarting asks again for a start of which the last daemon did not see the end. The monitor may still work on it,
// or may not have got it; it lets no process go twice. Else the container would be shown as created while it runs, and
// one that starts again by itself would wait for somebody to start it.
func goOnStarting(p *pod, l *container) {
	if r := p.rec.Load(); r.State != sandbox.Ready || r.StopAsked {
		return
	}
	p.work.background(func(ctx context.Context) {
		err := l.lane.Do(l.work.ctx, ctx, op.Op{Kind: opCtrStart, Run: l.start})
		if err != nil && ctx.Err() == nil {
			l.cfg.Log.Warn("a container could not be started, which an earlier daemon was about to", "pod", p.id, "container",
				l.id, "error", err)
		}
	})
}

// foundRunning finishes a start that the last daemon did not live to record. Plugins, which may have been shown the
// container as it was recorded, are told in its lane, before they are told of its end. The adoption does not wait.
func foundRunning(p *pod, l *container, since time.Time) {
	err := p.publish("container.running", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if c.State == sandbox.Created {
				if err := c.MoveTo(sandbox.Starting); err != nil {
					return err
				}
			}
			c.StartedAt = since
			if since.IsZero() { // a monitor that took over does not know
				c.StartedAt = time.Now()
			}
			return c.MoveTo(sandbox.Running)
		})
	})
	if err != nil {
		return
	}
	p.work.background(func(ctx context.Context) {
		_ = l.lane.Do(l.work.ctx, ctx, op.Op{Kind: opCtrStart, Key: "found", Run: func(ctx context.Context) error {
			l.notifier.containerStarted(ctx, l)
			return nil
		}})
	})
}

// rebooted marks what lived in another boot as ended: exits that a monitor wrote to the disk in time are exact.
func rebooted(p *pod, r *sandbox.Record) error {
	for _, c := range r.Containers {
		if !c.Live() {
			continue
		}
		e, err := runtime.ReadExit(p.cfg.Exit(p.id, c.ID))
		if err != nil {
			e = runtime.Exit{Unknown: true, FinishedAt: time.Now()}
		}
		p.containers.get(c.ID).ended(func(c *sandbox.Container) {
			sandbox.FillExit(c, e)
			if e.Unknown {
				c.Message = "the node was restarted while the container ran"
			}
		})
	}
	return p.publish("pod.rebooted", func(r *sandbox.Record) error {
		r.Boot = p.cfg.Boot
		if err := r.StopIsOver(); err != nil {
			return err
		}
		if r.State == sandbox.Ready {
			return r.MoveTo(sandbox.Stopping)
		}
		return nil
	})
}

// resume finishes what was under way when the last daemon ended.
func resume(ctx context.Context, p *pod) {
	r := p.rec.Load()
	switch r.State {
	case sandbox.Creating, sandbox.Removing:
		if !p.ours { // one of this daemon's has a caller, who is about to make it or remove it
			_ = removePod(ctx, p)
		}
		return
	case sandbox.Stopping:
		_ = stopPod(ctx, p)
	case sandbox.Ready:
		if why := p.cfg.Bundle.Pod(r).CheckPins(); why != nil {
			p.cfg.Log.Warn("a namespace of a pod is gone; the pod is stopped", "pod", p.id, "error", why)
			_ = stopPod(ctx, p)
		}
	}
	for _, c := range p.rec.Load().Containers {
		l := p.containers.get(c.ID)
		switch {
		case l == nil:
		case c.State == sandbox.Creating && l.ours: // asked for since this daemon adopted the pod
		case c.State == sandbox.Creating, c.State == sandbox.Removing:
			_ = l.remove(ctx)
		case c.Unreaped():
			l.reapOrRetry(ctx)
		}
	}
}
