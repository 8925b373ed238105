package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// The kinds of operation in the lane of a container.
const (
	opCtrCreate = "creation of the container"
	opCtrStart  = "start of the container"
	opCtrStop   = "stop of the container"
	opCtrReap   = "clearing away of the container's process"
	opCtrRemove = "removal of the container"
)

// endsBegin says that a stop or a removal of a container ends its creation or start.
func endsBegin(running string) bool { return running == opCtrCreate || running == opCtrStart }

// container is what a daemon knows of a container beside its record: the lane of its operations, and what waits for its
// end.
type container struct {
	p        *pod
	s        *Pods // of the pod, as are the next five
	cfg      *Config
	runtime  Runtime
	bundle   *bundle.Builder
	notifier *notifier
	work     *worker
	id       sandbox.ID
	lane     op.Lane
	exited   chan struct{} // closed when the record says exited
	once     sync.Once
	killed   atomic.Bool // it lived, and is killed because it is to end
	deadline stopDeadline
	ours     bool // made by this daemon; see pod.ours

	early    *runtime.Exit // an exit that came before the record said created: see tooEarly
	notified notified
	limits   containerLimits
	tries    retrier // at an undo that failed
}

func newContainer(p *pod, id sandbox.ID) *container {
	return &container{
		p: p, s: p.s, cfg: p.cfg, runtime: p.runtime, bundle: p.bundle, notifier: p.notifier, work: p.work, id: id,
		lane:   op.Lane{Of: op.Owner{Pod: string(p.id), Container: string(id)}},
		exited: make(chan struct{}), deadline: newStopDeadline(),
	}
}

// record returns the container's part of the pod's record, nil when it is gone.
func (l *container) record() *sandbox.Container { return l.p.record().Container(l.id) }

// Create makes a container in a ready pod: its root, and a process that waits to be started. The same request made
// again joins the one in flight, or gets the id of the container that it made.
func (s *Pods) Create(ctx context.Context, podID sandbox.ID, cfg *runtimeapi.ContainerConfig) (sandbox.ID, error) {
	p, err := s.Catalog.find(podID)
	if err != nil {
		return "", err
	}
	if err := validateContainer(cfg); err != nil {
		return "", err
	}
	if err := s.bundle.Labels.CheckContainer(p.record().SELinux,
		cfg.GetLinux().GetSecurityContext().GetSelinuxOptions()); err != nil {
		return "", sandbox.InContainer("", cfg.Metadata.Name, podID, sandbox.Invalid(err))
	}
	if err := p.waitAdopted(ctx); err != nil {
		return "", err
	}
	want := digest(cfg)
	for {
		id, img, err := p.claimContainer(ctx, cfg, want)
		if err != nil {
			return "", err
		}
		live, c := p.containers.get(id), p.record().Container(id)
		if live == nil || c == nil {
			continue
		}
		if c.Digest != want || c.State == sandbox.Removing || c.State == sandbox.Creating && !live.ours {
			if err := live.replace(ctx, c); err != nil {
				return "", err
			}
			continue
		}
		err = live.lane.Do(s.worker.ctx, ctx, op.Op{Kind: opCtrCreate, Key: want, Abandon: s.cfg.Abandon,
			Run: func(ctx context.Context) error { return live.create(ctx, img) }})
		switch {
		case errors.Is(err, errUndone):
			continue
		case err != nil:
			return "", err
		}
		return id, nil
	}
}

// claimContainer returns the container that has the request's name and attempt. When there is none it announces a new
// one in the pod's record, with the layers it will use, so that they stay.
func (p *pod) claimContainer(
	ctx context.Context, cfg *runtimeapi.ContainerConfig, want string,
) (sandbox.ID, bundle.Images, error) {
	img, release, err := p.bundle.Use(cfg)
	if err != nil {
		return "", img, err
	}
	defer release()
	sig, err := sandbox.RequestedSignal(cfg.StopSignal)
	if err == nil && sig == 0 {
		sig, err = sandbox.StopSignal(img.Config.StopSignal)
	}
	if err != nil {
		return "", img, fail.New(errdefs.ErrInvalidArgument, "container %s (image %q): %w", cfg.Metadata.Name,
			cfg.Image.Image, err)
	}
	m, err := sandbox.NewContainerConfig(cfg)
	if err != nil {
		return "", img, fail.New(errdefs.ErrInvalidArgument, "container configuration: %w", err)
	}
	if err := keepLayers(p, img.AllLayers()); err != nil {
		return "", img, err
	}
	storage, logs, err := p.bundle.Limits(p.record(), cfg.Metadata.Name)
	if err != nil {
		return "", img, sandbox.InContainer("", cfg.Metadata.Name, p.id, err)
	}
	id := sandbox.NewID()
	var there *sandbox.Container
	err = p.update(ctx, "container.creating", func(r *sandbox.Record) error {
		if r.State != sandbox.Ready {
			return sandbox.GoneError("pod sandbox", p.id, r.State)
		}
		if there = r.Named(cfg.Metadata); there != nil {
			return errUndone // nothing to write
		}
		if err := limit.PodContainers.Check(int64(len(r.Containers) + 1)); err != nil {
			return sandbox.InContainer("", cfg.Metadata.Name, p.id, err)
		}
		r.Containers = append(r.Containers, &sandbox.Container{
			ID: id, State: sandbox.Creating, Digest: want, Config: m,
			CreatedAt: p.s.Catalog.index.Load().created(r.Config.Get().GetMetadata(), cfg.Metadata.Name),
			Image:     img.ID, ImageRef: img.Ref, Volumes: img.Record(), Layers: img.AllLayers(), StopSignal: sig,
			Cgroup:  p.bundle.Cgroup(r, id),
			Storage: storage, LogLimit: logs,
		})
		live := newContainer(p, id)
		live.ours = true
		p.containers.put(live)
		return nil
	})
	if there != nil {
		return there.ID, img, nil
	}
	if err != nil {
		p.containers.drop(id)
		return "", img, err
	}
	p.s.Catalog.reindex(func(x *index) { x.containers[id] = p })
	return id, img, nil
}

func (l *container) replace(ctx context.Context, c *sandbox.Container) error {
	if c.State != sandbox.Creating && c.State != sandbox.Removing {
		m := c.Config.Get().Metadata
		return fail.New(errdefs.ErrAlreadyExists,
			"container %s (attempt %d) of pod %s exists already as %s with another configuration; remove it first",
			m.GetName(), m.GetAttempt(), l.p.id, c.ID)
	}
	return l.remove(ctx)
}

// create runs in the container's lane.
func (l *container) create(ctx context.Context, img bundle.Images) error {
	c := l.record()
	switch {
	case c == nil || c.State == sandbox.Removing:
		return errUndone
	case c.State != sandbox.Creating:
		return nil
	}
	b := &containerPlan{l: l, c: c, img: img}
	err := img.ConfirmAll(ctx, l.p.record().Config.Get().GetMetadata().GetNamespace())
	if err == nil {
		err = b.steps().Forward(ctx)
	}
	if err == nil {
		err = l.p.update(ctx, "container.created", func(r *sandbox.Record) error {
			return r.Edit(l.id, func(c *sandbox.Container) error {
				c.Process, c.User = b.process, b.user
				return c.MoveTo(sandbox.Created)
			})
		})
	}
	if err == nil {
		r := l.p.record()
		l.notifier.note(ctx, ContainerCreated, r, r.Container(l.id))
		if e := l.early; e != nil {
			l.s.Exited(string(l.p.id), string(l.id), *e)
		}
		return nil
	}
	err = sandbox.InContainer("", c.Config.Get().Metadata.GetName(), l.p.id,
		diskspace.Explain(err, l.cfg.Root, diskspace.MakeRoom))
	if undo := l.undo(op.Trace(l.work.ctx, ctx)); undo != nil {
		err = fmt.Errorf("%w; and %w, which is tried again in the background", err, undo)
	}
	return err
}

// undo removes a container altogether.
func (l *container) undo(ctx context.Context) error {
	err := l.p.publish("container.undo", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if c.State == sandbox.Removing {
				return nil
			}
			return c.MoveTo(sandbox.Removing)
		})
	})
	if err != nil {
		return sandbox.NilIfGone(err)
	}
	if err := l.plan(l.record()).steps().Backward(ctx); err != nil {
		err = diskspace.Explain(err, l.cfg.Root, diskspace.MakeRoom)
		l.stuck(err)
		return err
	}
	l.notifier.containerRemoved(ctx, l)
	_ = os.Remove(l.cfg.Exit(l.p.id, l.id))
	var layers []string
	err = l.p.publish("container.gone", func(r *sandbox.Record) error {
		for i, c := range r.Containers {
			if c.ID == l.id {
				layers = c.Layers
				r.Containers = append(r.Containers[:i:i], r.Containers[i+1:]...)
				break
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.p.containers.drop(l.id)
	l.s.Catalog.reindex(func(x *index) { delete(x.containers, l.id) })
	if l.cfg.Released != nil {
		l.cfg.Released(layers)
	}
	return nil
}

// stuck notes that an undo failed, and tries again later until it succeeds.
func (l *container) stuck(cause error) {
	if l.work.ctx.Err() != nil {
		return // the daemon is ending: the next start goes on
	}
	_ = l.p.publish("container.stuck", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			c.Stuck = c.Stuck.Again(cause)
			return nil
		})
	})
	if l.tries.ask(l.work, l.unstick) {
		l.cfg.Log.Warn("undo of a container failed; it is tried again in the background", "pod", l.p.id, "container",
			l.id, "error", cause)
	}
}

// unstick tries the undo again that failed, or the removal that came after it.
func (l *container) unstick() error {
	c := l.record()
	if c != nil && c.State == sandbox.Removing {
		return l.remove(l.work.ctx)
	}
	if err := l.reap(l.work.ctx); err != nil {
		return err
	}
	if c = l.record(); c != nil && c.Stuck != nil {
		return errors.New(c.Stuck.Error)
	}
	return nil
}

// Start starts a created container. A container that runs already has been started: that is no error.
func (s *Pods) Start(ctx context.Context, id sandbox.ID) error {
	live, err := s.Catalog.adopted(ctx, id)
	if err != nil {
		return err
	}
	return live.lane.Do(s.worker.ctx, ctx, op.Op{Kind: opCtrStart, Run: live.start})
}

func (l *container) start(ctx context.Context) error {
	c := l.record()
	switch {
	case c == nil:
		return sandbox.NotFound("container", l.id)
	case c.State == sandbox.Running:
		return nil
	case c.State == sandbox.Exited:
		return fail.New(errdefs.ErrFailedPrecondition, "container %s has ended already (exit code %d at %s)", l.id,
			c.ExitCode, c.FinishedAt.Format(time.RFC3339))
	case c.State != sandbox.Created && c.State != sandbox.Starting:
		return sandbox.GoneError("container", l.id, c.State)
	}
	if err := l.notifier.ask(ctx, ContainerStart, l.p.record(), c); err != nil {
		return sandbox.InContainer("start ", c.Config.Get().Metadata.GetName(), l.p.id, pluginError(ctx, err))
	}
	err := l.p.update(ctx, "container.starting", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if c.State == sandbox.Starting {
				return nil
			}
			return c.MoveTo(sandbox.Starting)
		})
	})
	if err != nil {
		return err
	}
	r := l.p.record()
	if err := letGo(ctx, l, r, c); err != nil {
		err = sandbox.InContainer("start ", c.Config.Get().Metadata.GetName(), l.p.id, err)
		l.cannotRun(err)
		return err
	}
	started := time.Now()
	err = l.p.publish("container.running", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if c.State != sandbox.Starting { // it has ended already
				return nil
			}
			c.StartedAt = started
			return c.MoveTo(sandbox.Running)
		})
	})
	if err == nil {
		l.notifier.containerStarted(ctx, l)
	}
	return err
}

// How long a start waits for a monitor that does not answer, or for the one that comes after it, and between two tries.
const (
	monitorWait  = 40 * time.Second
	monitorAgain = 100 * time.Millisecond
)

// letGo starts the container's process. While no monitor answers it is unknown whether an earlier try has, so it is
// asked for again until one does: to give up would be to kill a container that may run.
func letGo(ctx context.Context, l *container, r *sandbox.Record, c *sandbox.Container) error {
	for until := time.Now().Add(monitorWait); ; {
		err := l.runtime.Start(ctx, string(l.p.id), string(l.id), r.Log(c), l.bundle.Handlers.CreateTimeout(r))
		if !errdefs.IsUnavailable(err) || time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(monitorAgain):
		case <-ctx.Done():
			return err
		}
	}
}

// cannotRun ends a container whose start has failed.
func (l *container) cannotRun(cause error) {
	if l.work.ctx.Err() != nil {
		return // cut off, not failed: the next start finds out
	}
	now := time.Now()
	l.ended(func(c *sandbox.Container) { // first: how it ends by the kill is not what happened to it
		c.StartedAt, c.FinishedAt, c.ExitCode, c.Reason, c.Message = now, now, 128, sandbox.ReasonCannotRun, cause.Error()
	})
	if err := l.runtime.KillAll(l.work.ctx, string(l.p.id), string(l.id)); err != nil {
		l.cfg.Log.Warn("a container that could not be started is still alive", "pod", l.p.id, "container", l.id, "error",
			err)
	}
}

// validateContainer refuses a request from which no container can be made.
func validateContainer(cfg *runtimeapi.ContainerConfig) error {
	if cfg.GetMetadata().GetName() == "" {
		return fail.New(errdefs.ErrInvalidArgument, "container configuration: metadata with a name is required")
	}
	name := cfg.Metadata.Name
	if cfg.GetImage().GetImage() == "" {
		return fail.New(errdefs.ErrInvalidArgument, "container %s: an image is required", name)
	}
	if p := cfg.LogPath; p != "" && !filepath.IsLocal(p) {
		return fail.New(errdefs.ErrInvalidArgument, "container %s: log path %q leaves the pod's log directory", name, p)
	}
	if err := sandbox.CheckRestart(cfg); err != nil {
		return fmt.Errorf("container %s: %w", name, err)
	}
	for _, m := range cfg.Mounts {
		if !strings.HasPrefix(m.ContainerPath, "/") {
			return fail.New(errdefs.ErrInvalidArgument, "container %s: mount target %q is not an absolute path", name,
				m.ContainerPath)
		}
		if err := bundle.CheckImageMount(m); err != nil {
			return fmt.Errorf("container %s: %w", name, err)
		}
	}
	return nil
}
