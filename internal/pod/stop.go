package pod

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/cgroup"
	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/sandbox"
)

// endsBegun says that a stop or a removal turns a creation into an undo, and ends a change of the pod's resources: both
// may wait for plugins that join.
func endsBegun(running string) bool { return running == opCreate || running == opLimit }

// Stop ends the containers, the network, the namespaces and the monitor of a pod. It returns when nothing of them is
// left, and may be repeated; stopping an unknown pod succeeds. Afterwards no container of it starts again by its
// restart policy.
func (s *Pods) Stop(ctx context.Context, id sandbox.ID) error {
	p, err := findToEnd(s, id)
	if err != nil {
		return sandbox.NilIfGone(err)
	}
	noteStop(p)
	return stopPod(ctx, p)
}

// noteStop has the record of a pod of berth run say that a client asked for the pod's end.
func noteStop(p *pod) {
	if r := p.record(); !r.ByHand() || r.StopAsked {
		return
	}
	_, _ = p.publishAsync("pod.stop-asked", func(r *sandbox.Record) error {
		r.StopAsked = true
		return nil
	})
}

// noteRemoval is noteStop for a removal. It is noted in the sandboxes before as well, from which the pod would start
// again. A sandbox in which nothing is leaves the pod as it was: it is what a start has made that failed.
func noteRemoval(p *pod) {
	noteStop(p)
	if slices.ContainsFunc(p.record().Containers, (*sandbox.Container).Listed) {
		for _, q := range sandboxesBefore(p) {
			noteStop(q)
		}
	}
}

// sandboxesBefore are the sandboxes in whose place that of p came, where berth run made the pod, and which are still
// there.
func sandboxesBefore(p *pod) (all []*pod) {
	r := p.record()
	if !r.ByHand() {
		return nil
	}
	m := r.Config.Get().GetMetadata()
	for q := range p.s.Catalog.index.Load().attempts(m) {
		if r := q.record(); r.ByHand() && r.Config.Get().GetMetadata().GetAttempt() < m.GetAttempt() {
			all = append(all, q)
		}
	}
	return all
}

// stopPod stops a pod, for a client or for Remove.
func stopPod(ctx context.Context, p *pod) error {
	if err := p.waitAdopted(ctx); err != nil {
		return err // without a monitor its end cannot be seen
	}
	return p.lane.Do(p.work.ctx, ctx, op.Op{Kind: opStop, Ends: endsBegun, Run: p.stop})
}

// Remove stops a pod unless it is stopped, and removes its containers and its record. It may be repeated; removing an
// unknown pod succeeds. Nothing of it starts again by its restart policy, as after Stop.
func (s *Pods) Remove(ctx context.Context, id sandbox.ID) error {
	p, err := findToEnd(s, id)
	if err != nil {
		return sandbox.NilIfGone(err)
	}
	noteRemoval(p)
	return removePod(ctx, p)
}

// removePod removes a pod, for a client or because it could not be made to the end.
func removePod(ctx context.Context, p *pod) error {
	if err := p.waitAdopted(ctx); err != nil {
		return err // without a monitor its end cannot be seen
	}
	return p.lane.Do(p.work.ctx, ctx, op.Op{Kind: opRemove, Ends: endsBegun, Run: p.remove})
}

// stop runs in the pod's lane.
func (p *pod) stop(ctx context.Context) error {
	if p.gone() {
		return nil
	}
	switch p.rec.Load().State {
	case sandbox.Creating, sandbox.Removing: // an earlier daemon left it so, or its undo is stuck
		return p.undo(ctx)
	case sandbox.Stopped:
		return nil
	}
	err := p.takeDown(ctx)
	if err != nil {
		err = fail.About(fail.Detail{Pod: string(p.id)}, "stop pod %s: %w", p.id,
			diskspace.Explain(err, p.cfg.Root, diskspace.MakeRoom))
		if p.work.ctx.Err() == nil {
			p.stuck(err, func() error { return stopPod(p.work.ctx, p) })
		}
	}
	return err
}

// takeDown brings a ready or stopping pod to stopped.
func (p *pod) takeDown(ctx context.Context) error {
	err := p.publish("pod.stopping", func(r *sandbox.Record) error {
		if r.State == sandbox.Stopping {
			return nil
		}
		return r.MoveTo(sandbox.Stopping)
	})
	if err != nil {
		return err
	}
	if err := p.endSandbox(ctx); err != nil {
		return err
	}
	if err := thawPod(ctx, p); err != nil {
		return err
	}
	if err := p.containers.end(ctx, p.record().Containers); err != nil {
		return err
	}
	if err := p.plan().steps().BackwardTo(ctx, stepFiles); err != nil {
		return err
	}
	return p.publish("pod.stopped", func(r *sandbox.Record) error {
		r.Stuck, r.Init = nil, sandbox.Record{}.Init
		return r.MoveTo(sandbox.Stopped)
	})
}

// endSandbox kills the sandbox in which the pod's containers are, where there is one. They end with it, also in one
// that hangs and does not do what its runtime asks of it.
func (p *pod) endSandbox(ctx context.Context) error {
	r := p.rec.Load()
	outside := func(c *sandbox.Container) bool { return !c.Live() || !r.Sandboxed(c) }
	inside := slices.DeleteFunc(slices.Clone(r.Containers), outside)
	if len(inside) == 0 {
		return nil
	}
	for _, c := range inside {
		willKill(p.containers.get(c.ID), c)
	}
	err := p.cfg.Runtime.KillAll(ctx, string(p.id), string(p.id))
	if err != nil {
		for _, c := range inside {
			notKilled(p.containers.get(c.ID), c)
		}
	}
	return err
}

// thawPod has the containers of a pod die whose own cgroup is frozen: the freezing of the containers' own is ended by
// their kill. They are killed first, so that none of them goes on. A cgroup that the pod was given is its owner's, and
// stays frozen.
func thawPod(ctx context.Context, p *pod) error {
	r := p.rec.Load()
	if r.Config.Get().GetLinux().GetCgroupParent() != "" {
		return nil
	}
	path, err := p.bundle.PodCgroup(r)
	if err != nil || !cgroup.FrozenItself(path) {
		return nil // nothing of Berth's own can be frozen there
	}
	for _, c := range r.Containers {
		l := p.containers.get(c.ID)
		willKill(l, c)
		if err := p.cfg.Runtime.KillAll(ctx, string(p.id), string(c.ID)); err != nil {
			notKilled(l, c)
			return err
		}
	}
	return cgroup.Thaw(path)
}

// end kills those containers that run, and clears away what the runtime and the mounts hold of every one; their records
// and writable layers stay.
func (s *containerSet) end(ctx context.Context, all []*sandbox.Container) error {
	var g errgroup.Group
	for _, c := range all {
		l := s.get(c.ID)
		if l == nil {
			continue
		}
		g.Go(func() error {
			if c.State == sandbox.Creating {
				return l.remove(ctx)
			}
			if err := l.stop(ctx, 0); err != nil {
				return err
			}
			return l.reap(ctx)
		})
	}
	return g.Wait()
}

// remove runs in the pod's lane.
func (p *pod) remove(ctx context.Context) error {
	if err := p.stop(ctx); err != nil {
		return err
	}
	if p.gone() {
		return nil
	}
	for _, c := range p.rec.Load().Containers {
		if l := p.containers.get(c.ID); l != nil {
			if err := l.remove(ctx); err != nil {
				return fail.About(fail.Detail{Pod: string(p.id)}, "remove pod %s: %w", p.id, err)
			}
		}
	}
	return p.undo(ctx)
}

// gone reports whether the pod has been removed to the end.
func (p *pod) gone() bool { return p.s.Catalog.index.Load().pods[p.id] != p }

// waitAdopted waits until a restarted daemon knows what runs.
func (p *pod) waitAdopted(ctx context.Context) error {
	select {
	case <-p.adopted:
		return nil
	case <-ctx.Done():
		return &op.WaitError{Kind: opAdopt, Err: ctx.Err()}
	}
}

// killWait bounds how long the death of a killed process is waited for: longer, and it hangs in the kernel.
const killWait = 30 * time.Second
