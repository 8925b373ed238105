package pod

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Moment is one in the life of a pod or of a container that plugins are told of.
type Moment int

// The moments. An error keeps PodRun and ContainerStart from coming; what the others say has happened already.
const (
	PodRun Moment = iota // its namespaces and its network are up
	PodLimited
	PodStop // its containers have ended, its network is still up
	PodRemove
	ContainerCreated
	ContainerStart
	ContainerStarted
	ContainerLimited
	ContainerStop // it has ended, by itself or not
	ContainerRemove
)

// Change is what plugins want done to a container beside what they were asked about.
type Change struct {
	Container sandbox.ID
	Limits    *runtimeapi.LinuxContainerResources // nil changes none
	// how many processes it may have, which CRI knows no limit of; -1 is any number, 0 no change
	Pids   int64
	Evict  bool  // stop it
	Cannot error // why it cannot be done: nothing of it is
}

// Plugins are told of what happens to pods and containers, and may change it. Each is told of a life in its order, but
// may be told again of an end. What a call may take is theirs to bound.
type Plugins interface {
	Tell(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) ([]Change, error)
	// Adjust changes the spec of a container that is about to be made.
	Adjust(ctx context.Context, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec) ([]Change, error)
	// Limits returns what a container's limits are to be changed to, where want is asked for.
	Limits(ctx context.Context, r *sandbox.Record, c *sandbox.Container,
		want *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, []Change, error)
	// PodLimits tells that a pod's resources are about to be changed. An error keeps them as they are.
	PodLimits(ctx context.Context, r *sandbox.Record, overhead, resources *runtimeapi.LinuxContainerResources) error
	// Hold keeps plugins from joining until release is called: one that joins is either told of what begins meanwhile, or
	// finds it among what there is.
	Hold() (release func())
}

// life is what plugins were told of a pod or container.
type life struct{ begun, ended bool }

// telling tells plugins of one pod and what is in it. Without plugins it does nothing.
type telling struct{ p *pod }

func (t telling) plugins() Plugins { return t.p.cfg.Plugins }

// tell tells of a moment, and does what the plugins want done to others, unless one refuses.
func (t telling) tell(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) error {
	if t.plugins() == nil {
		return nil
	}
	changes, err := t.plugins().Tell(ctx, m, r, c)
	if err != nil {
		return err
	}
	Limiter{t.p.s}.Apply(ctx, changes)
	return nil
}

// told tells of what has happened, which no error undoes.
func (t telling) told(ctx context.Context, m Moment, c *sandbox.Container) {
	if err := t.tell(ctx, m, t.p.rec.Load(), c); err != nil {
		t.p.cfg.Log.Warn("a plugin failed at what it was told of", "pod", t.p.id, "error", err)
	}
}

// once sets what a flag says and returns whether it was different.
func (t telling) once(flag *bool) bool {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	was := *flag
	*flag = true
	return !was
}

func (t telling) is(flag *bool) bool {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	return *flag
}

// introduce tells plugins of a pod whose network is up.
func (m *podPlan) introduce(ctx context.Context) error {
	t := telling{m.p}
	if t.plugins() == nil {
		return nil
	}
	defer t.plugins().Hold()()
	t.once(&m.p.life.begun)
	r := m.r.Clone()
	r.IPs, r.Init = m.ips, m.init
	return t.tell(ctx, PodRun, r, nil)
}

// dismiss tells them that it is stopped.
func (m *podPlan) dismiss(ctx context.Context) error {
	t := telling{m.p}
	if t.plugins() != nil && t.is(&m.p.life.begun) && t.once(&m.p.life.ended) {
		t.told(ctx, PodStop, nil)
	}
	return nil
}

// removed tells them that the pod is gone.
func (t telling) removed(ctx context.Context) {
	if t.plugins() != nil && t.is(&t.p.life.begun) {
		t.told(ctx, PodRemove, nil)
	}
}

// containerEnded tells them, once, of a container that has ended.
func (t telling) containerEnded(ctx context.Context, l *container) {
	if t.plugins() == nil {
		return
	}
	c := t.p.rec.Load().Container(l.id)
	if c != nil && c.State == sandbox.Exited && t.is(&l.life.begun) && t.once(&l.life.ended) {
		t.told(ctx, ContainerStop, c)
	}
}

// containerRemoved tells them that a container is gone.
func (t telling) containerRemoved(ctx context.Context, l *container, c *sandbox.Container) {
	if t.plugins() != nil && c != nil && t.is(&l.life.begun) {
		t.told(ctx, ContainerRemove, c)
	}
}

// adjust lets plugins change the spec of a container that is about to be made, and records what of it the record tells.
func adjust(
	ctx context.Context, l *container, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec,
) error {
	t := telling{l.p}
	if t.plugins() == nil || l.p.container(c.ID) != l {
		return nil
	}
	defer t.plugins().Hold()()
	t.once(&l.life.begun)
	before := copyLimits(sp.Linux.Resources)
	changes, err := t.plugins().Adjust(ctx, r, c, sp)
	if err != nil {
		return err
	}
	Limiter{l.p.s}.Apply(ctx, changes)
	sp.Version = spec.LowestVersion(sp)
	var limits sandbox.Resources
	if after := sp.Linux.Resources; after != nil && !sameLimits(before, after) {
		if limits, err = sandbox.NewResources(merge(c.Limits(), criLimits(after))); err != nil {
			return err
		}
	}
	if limits.Get() == nil && sp.Linux.CgroupsPath == c.Cgroup {
		return nil
	}
	return l.p.update(ctx, "container.adjusted", func(r *sandbox.Record) error {
		return r.Edit(c.ID, func(c *sandbox.Container) error {
			c.Cgroup = sp.Linux.CgroupsPath
			if limits.Get() != nil {
				c.Resources = limits
			}
			return nil
		})
	})
}

// copyLimits copies what sameLimits compares.
func copyLimits(r *specs.LinuxResources) *specs.LinuxResources {
	out := &specs.LinuxResources{HugepageLimits: slices.Clone(r.HugepageLimits), Unified: maps.Clone(r.Unified)}
	if r.CPU != nil {
		cpu := *r.CPU
		out.CPU = &cpu
	}
	if r.Memory != nil {
		memory := *r.Memory
		out.Memory = &memory
	}
	return out
}

func sameLimits(a, b *specs.LinuxResources) bool {
	return reflect.DeepEqual(a.CPU, b.CPU) && reflect.DeepEqual(a.Memory, b.Memory) &&
		reflect.DeepEqual(a.HugepageLimits, b.HugepageLimits) && reflect.DeepEqual(a.Unified, b.Unified)
}

// criLimits are limits as CRI has them.
func criLimits(o *specs.LinuxResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{Unified: o.Unified}
	if c := o.CPU; c != nil {
		out.CpuPeriod, out.CpuShares, out.CpuQuota = int64(value(c.Period)), int64(value(c.Shares)), value(c.Quota)
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
	}
	if m := o.Memory; m != nil {
		out.MemoryLimitInBytes = value(m.Limit)
	}
	for _, h := range o.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.Pagesize, Limit: h.Limit})
	}
	return out
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Apply makes changes that plugins want, and returns those that failed.
func (s Limiter) Apply(ctx context.Context, changes []Change) (failed []Change) {
	for _, ch := range changes {
		if err := s.apply(ctx, ch); err != nil {
			s.cfg.Log.Warn("what a plugin wants of a container was not done", "container", ch.Container, "error", err)
			failed = append(failed, ch)
		}
	}
	return failed
}

func (s Limiter) apply(ctx context.Context, ch Change) error {
	if ch.Cannot != nil {
		return ch.Cannot
	}
	p, _, err := s.findContainer(ch.Container)
	if err != nil {
		return err
	}
	if ch.Evict {
		s.background(func(ctx context.Context) { _ = s.StopContainer(ctx, ch.Container, 0) })
	}
	l := p.container(ch.Container)
	if l == nil {
		return nil
	}
	putBack := func() error { return nil }
	if ch.Pids != 0 {
		if putBack, err = (limiting{l}).setPids(ctx, ch.Pids); err != nil {
			return err
		}
	}
	if ch.Limits == nil {
		return nil
	}
	if err := (limiting{l}).set(ctx, ch.Limits); err != nil {
		return errors.Join(err, putBack())
	}
	return nil
}

// Known are the pods and containers that plugins know, or should: what begins is among them before anybody is told of
// it.
func (s *Pods) Known() (pods []*sandbox.Record, containers map[sandbox.ID]*sandbox.Record) {
	containers = map[sandbox.ID]*sandbox.Record{}
	for _, p := range s.index.Load().pods {
		t, r := telling{p}, p.rec.Load()
		if r.State != sandbox.Ready && (r.State != sandbox.Creating || !t.is(&p.life.begun)) {
			continue
		}
		pods = append(pods, r)
		for _, c := range r.Containers {
			if l := p.container(c.ID); l != nil && (c.Live() || c.State == sandbox.Creating && t.is(&l.life.begun)) {
				containers[c.ID] = r
			}
		}
	}
	return pods, containers
}

// consult asks plugins what a container's limits are to be changed to.
func (l limiting) consult(
	ctx context.Context, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, error) {
	plugins := l.cfg.Plugins
	r := l.p.rec.Load()
	c := r.Container(l.id)
	if plugins == nil || c == nil || !c.Live() {
		return want, nil // set says why it cannot be done
	}
	all, changes, err := plugins.Limits(ctx, r, c, want)
	if err != nil {
		return nil, pluginError(err)
	}
	Limiter{l.p.s}.Apply(ctx, changes)
	return all, nil
}

// pluginError is a refusal by a plugin, unless the caller went.
func pluginError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fail.New(errdefs.ErrFailedPrecondition, "a plugin refuses: %w", err)
}
