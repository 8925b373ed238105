package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/bundle"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// stepDirs is the step of a container's plan that outlives its process: the steps after it are undone when the process
// has ended, and it when the container is removed.
const stepDirs = "dirs"

// containerPlan makes or removes one container. Backward it needs nothing but the record.
type containerPlan struct {
	l   *container
	c   *sandbox.Container // as it was when this began
	img bundle.Images
	// keepExit says that backward steps keep the exit file, because the record on the disk does not have the exit.
	keepExit bool

	// What is found out on the way:
	user    spec.User
	process runtime.Process
}

func (l *container) plan(c *sandbox.Container) *containerPlan { return &containerPlan{l: l, c: c} }

// on is what of the container is on the host, by the pod's record as it is now.
func (b *containerPlan) on() bundle.Container { return b.l.bundle.Container(b.l.p.record(), b.c) }

// steps are the plan of a container. Forward it makes the container; backward it removes what is left of its process,
// and then the container.
func (b *containerPlan) steps() op.Plan {
	return op.Plan{Name: "container", Seen: b.l.cfg.StepSeen, Steps: []op.Step{
		{Name: stepDirs, Do: func(context.Context) error { return b.on().MakeDirs() },
			Undo: func(context.Context) error { return b.removeWritable() }},
		{Name: "rootfs", Do: func(context.Context) error { return b.on().MountRoot(b.img) },
			Undo: func(context.Context) error { return b.unmountRoot() }},
		{Name: "volumes", Do: func(context.Context) error { return b.on().MountVolumes(b.img) },
			Undo: func(context.Context) error { return b.on().UnmountVolumes() }},
		// It writes into the root (bundle.Container.Request): what wants the image's own root stands before it.
		{Name: "process", Deadline: b.l.bundle.Handlers.CreateTimeout(b.l.p.record()) + 10*time.Second,
			Do: b.makeProcess, Undo: b.unmakeProcess},
	}}
}

func (b *containerPlan) removeWritable() error {
	b.l.s.Meter.Logs.Forget(b.c.ID)
	return b.on().RemoveWritable()
}

func (b *containerPlan) unmountRoot() error {
	if b.c.Reaped {
		return nil
	}
	return b.on().UnmountRoot(b.keepExit)
}

// makeProcess has the runtime create the process.
func (b *containerPlan) makeProcess(ctx context.Context) error {
	p, r := b.l.p, b.l.p.record()
	on := b.l.bundle.Container(r, b.c)
	want, err := on.Request(ctx, b.img, func(ctx context.Context, sp *specs.Spec) error {
		if err := p.notifier.adjust(ctx, b.l, r, b.c, sp); err != nil {
			return fmt.Errorf("adjust the container by plugins: %w", pluginError(ctx, err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.user = want.User
	done, err := on.WritableSys()
	if err != nil {
		return err
	}
	defer done()
	if b.process, err = b.l.runtime.Create(ctx, string(p.id), want.Create); err != nil {
		return err
	}
	return on.Unstage()
}

// unmakeProcess kills what runs of the container, and deletes it from the runtime.
func (b *containerPlan) unmakeProcess(ctx context.Context) error {
	if b.c.Reaped {
		return nil
	}
	p := b.l.p
	h, err := b.l.bundle.Handlers.Of(p.record())
	if err != nil {
		return err
	}
	return b.l.runtime.Delete(ctx, string(p.id), string(b.c.ID), h)
}
