package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
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

// Asks reports whether an error of a plugin keeps the moment from coming.
func (m Moment) Asks() bool { return m == PodRun || m == ContainerStart }

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
	// Tell tells of a moment. Of one that asks, it is called between Hold and its release. What has happened may be told
	// after Tell has returned, with no changes, while a plugin joins: it is called when the records say what has happened.
	Tell(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) ([]Change, error)
	// Adjust changes the spec of a container that is about to be made. It and what follows asks, as some moments do.
	Adjust(ctx context.Context, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec) ([]Change, error)
	// Limits returns what a container's limits are to be changed to, where want is asked for.
	Limits(ctx context.Context, r *sandbox.Record, c *sandbox.Container,
		want *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, []Change, error)
	// PodLimits tells that a pod's resources are about to be changed. An error keeps them as they are.
	PodLimits(ctx context.Context, r *sandbox.Record, overhead, resources *runtimeapi.LinuxContainerResources) error
	// Hold keeps plugins from joining until release is called: one that joins is either told of what begins meanwhile, or
	// finds it among what there is. Where ctx ends while one joins nothing is held, and the cause of that is the error.
	Hold(ctx context.Context) (release func(), err error)
}

// notified is what plugins were told of the life of a pod or container.
type notified struct {
	mu           sync.Mutex // guards what follows; nothing else is locked below it
	begun, ended bool
}

// begin notes that they are told of its beginning.
func (n *notified) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun = true
}

// hasBegun reports whether they were told of its beginning.
func (n *notified) hasBegun() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.begun
}

// hasEnded reports whether they were told of its end.
func (n *notified) hasEnded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended
}

// end reports whether they are to be told of its end: once, and only of what they know.
func (n *notified) end() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.begun || n.ended {
		return false
	}
	n.ended = true
	return true
}

// notifier tells plugins of pods and of what is in them. Without plugins it does nothing.
type notifier struct {
	plugins Plugins  // nil when there are none
	limiter *Limiter // makes the changes that they want
	log     *slog.Logger
}

// ask asks about a moment, while no plugin joins, and does what the plugins want done to others, unless one refuses.
func (n *notifier) ask(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) error {
	if n.plugins == nil {
		return nil
	}
	release, err := n.plugins.Hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	return n.tell(ctx, m, r, c)
}

// tell tells of a moment, and does what the plugins want done to others, unless one refuses.
func (n *notifier) tell(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) error {
	if n.plugins == nil {
		return nil
	}
	changes, err := n.plugins.Tell(ctx, m, r, c)
	if err != nil {
		return err
	}
	n.limiter.Apply(ctx, changes)
	return nil
}

// limits asks what a container's limits are to be changed to.
func (n *notifier) limits(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, []Change, error) {
	release, err := n.plugins.Hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	return n.plugins.Limits(ctx, r, c, want)
}

// podLimits asks whether a pod's resources are to be changed.
func (n *notifier) podLimits(
	ctx context.Context, r *sandbox.Record, overhead, resources *runtimeapi.LinuxContainerResources,
) error {
	release, err := n.plugins.Hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	return n.plugins.PodLimits(ctx, r, overhead, resources)
}

// note tells of what has happened to a pod, or to its container c; no error undoes it.
func (n *notifier) note(ctx context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) {
	if err := n.tell(ctx, m, r, c); err != nil {
		n.log.Warn("a plugin failed to handle an event", "pod", r.ID, "error", err)
	}
}

// podRemoved tells them that a pod is gone.
func (n *notifier) podRemoved(ctx context.Context, p *pod) {
	if n.plugins != nil && p.notified.hasBegun() {
		n.note(ctx, PodRemove, p.record(), nil)
	}
}

// containerStarted tells them of a container that was started, unless they were told of its end. It is called in the
// container's lane.
func (n *notifier) containerStarted(ctx context.Context, l *container) {
	r := l.p.record()
	if c := r.Container(l.id); n.plugins != nil && c != nil && !l.notified.hasEnded() {
		n.note(ctx, ContainerStarted, r, c)
	}
}

// containerEnded tells them, once, of a container that has ended.
func (n *notifier) containerEnded(ctx context.Context, l *container) {
	if n.plugins == nil {
		return
	}
	r := l.p.record()
	if c := r.Container(l.id); c != nil && c.State == sandbox.Exited && l.notified.end() {
		n.note(ctx, ContainerStop, r, c)
	}
}

// containerRemoved tells them that a container is gone.
func (n *notifier) containerRemoved(ctx context.Context, l *container) {
	r := l.p.record()
	if c := r.Container(l.id); n.plugins != nil && c != nil && l.notified.hasBegun() {
		n.note(ctx, ContainerRemove, r, c)
	}
}

// introduce tells plugins of a pod whose network is up.
func (m *podPlan) introduce(ctx context.Context) error {
	n := m.p.notifier
	if n.plugins == nil {
		return nil
	}
	release, err := n.plugins.Hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	m.p.notified.begin()
	r := m.r.Clone()
	r.IPs, r.Init = m.ips, m.init
	return pluginError(ctx, n.tell(ctx, PodRun, r, nil))
}

// dismiss tells them that it is stopped.
func (m *podPlan) dismiss(ctx context.Context) error {
	if n := m.p.notifier; n.plugins != nil && m.p.notified.end() {
		n.note(ctx, PodStop, m.p.record(), nil)
	}
	return nil
}

// adjust lets plugins change the spec of a container that is about to be made, and does what they want done to others.
func (n *notifier) adjust(
	ctx context.Context, l *container, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec,
) error {
	if n.plugins == nil || l.p.containers.get(c.ID) != l {
		return nil
	}
	changes, err := n.adjusted(ctx, l, r, c, sp)
	if err != nil {
		return err
	}
	n.limiter.Apply(ctx, changes)
	return nil
}

// adjusted asks plugins how they change the spec, and records what of it the record tells: a plugin that joins next is
// shown it.
func (n *notifier) adjusted(
	ctx context.Context, l *container, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec,
) ([]Change, error) {
	release, err := n.plugins.Hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	l.notified.begin()
	before := copyLimits(sp.Linux.Resources)
	changes, err := n.plugins.Adjust(ctx, r, c, sp)
	if err != nil {
		return nil, err
	}
	sp.Version = spec.LowestVersion(sp)
	limits, err := adjustedLimits(c, before, sp.Linux.Resources, l.bundle.Host)
	if err != nil {
		return nil, err
	}
	if limits.Get() == nil && sp.Linux.CgroupsPath == c.Cgroup {
		return changes, nil
	}
	return changes, l.p.update(ctx, "container.adjusted", func(r *sandbox.Record) error {
		return r.Edit(c.ID, func(c *sandbox.Container) error {
			c.Cgroup = sp.Linux.CgroupsPath
			if limits.Get() != nil {
				c.Resources = limits
			}
			return nil
		})
	})
}

// adjustedLimits are the limits of a container with what plugins have changed in its spec; none where they have changed
// nothing. What no client could have asked for is refused: a client could change none of the limits later. Limits of
// the handler's base, which are in the spec, too, are not judged, and are no limits of the container's.
func adjustedLimits(
	c *sandbox.Container, before, after *specs.LinuxResources, host spec.Host,
) (none sandbox.Resources, err error) {
	changed := changedLimits(criLimits(before), criLimits(after))
	if proto.Size(changed) == 0 {
		return none, nil
	}
	all := merge(c.Limits(), changed)
	if _, _, err := spec.Resources(all, host); err != nil {
		return none, fmt.Errorf("a limit that it sets is none that a client could ask for: %w: have it leave that out", err)
	}
	return sandbox.NewResources(all)
}

// changedLimits are those of after that differ from before.
func changedLimits(before, after *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{Unified: maps.Clone(after.Unified)}
	maps.DeleteFunc(out.Unified, func(k, v string) bool { was, ok := before.Unified[k]; return ok && was == v })
	set := func(to *int64, was, now int64) {
		if was != now {
			*to = now
		}
	}
	set(&out.CpuPeriod, before.CpuPeriod, after.CpuPeriod)
	set(&out.CpuQuota, before.CpuQuota, after.CpuQuota)
	set(&out.CpuShares, before.CpuShares, after.CpuShares)
	if before.CpusetCpus != after.CpusetCpus {
		out.CpusetCpus = after.CpusetCpus
	}
	if before.CpusetMems != after.CpusetMems {
		out.CpusetMems = after.CpusetMems
	}
	memory := [2]int64{after.MemoryLimitInBytes, after.MemorySwapLimitInBytes}
	if memory != [2]int64{before.MemoryLimitInBytes, before.MemorySwapLimitInBytes} { // one says nothing without the other
		out.MemoryLimitInBytes, out.MemorySwapLimitInBytes = memory[0], memory[1]
	}
	pages := map[string]uint64{}
	for _, h := range before.HugepageLimits {
		pages[h.PageSize] = h.Limit
	}
	for _, h := range after.HugepageLimits {
		if was, ok := pages[h.PageSize]; !ok || was != h.Limit {
			out.HugepageLimits = append(out.HugepageLimits, h)
		}
	}
	return out
}

// copyLimits copies what criLimits reads.
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

// criLimits are limits as CRI has them.
func criLimits(o *specs.LinuxResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{Unified: o.Unified}
	if c := o.CPU; c != nil {
		out.CpuPeriod, out.CpuShares, out.CpuQuota = int64(value(c.Period)), int64(value(c.Shares)), value(c.Quota)
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
	}
	if m := o.Memory; m != nil {
		out.MemoryLimitInBytes = value(m.Limit)
		if swap := value(m.Swap); swap != value(m.Limit) { // the same is none, which CRI need not say
			out.MemorySwapLimitInBytes = swap
		}
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

// Known are the pods and containers that plugins know, or should: what begins is among them before anybody is told of
// it. Plugins join before the pods of an earlier daemon are adopted: what lived of them in another boot is not among
// them, whatever the records say until then. Plugins are told of its end.
func (s *Pods) Known() (pods []*sandbox.Record, containers map[sandbox.ID]*sandbox.Record) {
	containers = map[sandbox.ID]*sandbox.Record{}
	for _, p := range s.Catalog.index.Load().pods {
		r := p.record()
		if r.State != sandbox.Ready && (r.State != sandbox.Creating || !p.notified.hasBegun()) {
			continue
		}
		if r.Boot != s.cfg.Boot || !closed(p.adopted) && vanished(p, r) {
			continue
		}
		pods = append(pods, r)
		for _, c := range r.Containers {
			l := p.containers.get(c.ID)
			if l != nil && (c.Live() || c.State == sandbox.Creating && l.notified.hasBegun()) {
				containers[c.ID] = r
			}
		}
	}
	return pods, containers
}

// pluginError is a refusal by a plugin, unless ctx, under which it was asked or about to be, has ended. A plugin that
// does not answer in time, and whose answer is required, refuses.
func pluginError(ctx context.Context, err error) error {
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Cause(ctx))
	if err == nil || ended && ctx.Err() != nil {
		return err
	}
	return fail.New(errdefs.ErrFailedPrecondition, "a plugin refuses: %w", err)
}
