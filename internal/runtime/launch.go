package runtime

import (
	"context"
	"fmt"
	"time"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// Launch makes sure that a pod's monitor runs and answers. The pod's run directory must be there.
func (r *Runtime) Launch(ctx context.Context, pod string) error {
	_, err := r.links.get(pod).connect(ctx)
	return err
}

// Adopt finds a pod's monitor again, or starts one that takes over what a killed one has left, and tells what it holds.
func (r *Runtime) Adopt(ctx context.Context, pod string) (Inventory, error) {
	l := r.links.get(pod)
	list, err := l.connect(ctx)
	if err != nil {
		return Inventory{}, err
	}
	for _, e := range list {
		if e.State == wire.Exited {
			l.handles.report(e.ID) // by what is returned
		}
	}
	return inventoryOf(list), nil
}

// turnTimeout bounds the wait for an operation on a pod's monitor that was told to end.
const turnTimeout = 5 * time.Second

// killTimeout bounds the wait for the end of a killed process. One that takes longer hangs in the kernel.
const killTimeout = 5 * time.Second

// shutdownTimeout bounds the wait for a monitor that is asked to end. It is killed then.
const shutdownTimeout = 2 * time.Second

// Shutdown ends a pod's monitor, whatever else is in its cgroup, and what may be left of its containers; nil when there
// is nothing.
func (r *Runtime) Shutdown(ctx context.Context, pod string) error {
	l := r.links.remove(pod)
	c := l.shut()
	// What is joining or starting a monitor sees that by now, and does not leave one behind.
	wait, cancel := context.WithTimeout(ctx, turnTimeout)
	if _, release, err := l.take(wait); err == nil {
		defer release()
	}
	cancel()
	if c == nil {
		if conn, err := dial(r.cfg.dir(pod)); err == nil {
			c = newClient(conn, &silence{}, func(*wire.Reply) {}, func() {})
		}
	}
	if c != nil {
		c.quiet()
		ask, cancel := context.WithTimeout(ctx, shutdownTimeout)
		_, _ = c.call(ask, wire.Request{Op: wire.Shutdown}) // one that hangs, or holds on, is killed below
		cancel()
		c.end()
	}
	if err := r.cfg.endPod(ctx, pod); err != nil {
		return fmt.Errorf("end the monitor of pod %s: %w", pod, err)
	}
	l.reap()
	return nil
}

// end kills what is in a group, sees it gone and removes the group.
func end(ctx context.Context, g *cgroup.Group) error {
	if err := g.Kill(); err != nil {
		return err
	}
	if err := g.WaitEmpty(ctx); err != nil {
		return err
	}
	return g.Remove()
}
