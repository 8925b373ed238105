package pod

import (
	"context"
	"errors"
	"maps"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// The kinds of operation that change what a pod or container may use.
const (
	opLimit    = "change of the pod's resources"
	opCtrLimit = "change of the container's limits"
)

// Limiter changes what pods and containers may use while they live.
type Limiter struct{ *Pods }

// Container changes the limits of a container that is created or runs: all that want has, or none. What want does not
// mention stays as it is. From then on they are the container's, in its status and for the next daemon.
func (s Limiter) Container(ctx context.Context, id sandbox.ID, want *runtimeapi.LinuxContainerResources) error {
	l, err := s.adopted(ctx, id)
	if err != nil {
		return err
	}
	if want == nil {
		return nil
	}
	return l.lane.Do(s.ctx, ctx, op.Op{Kind: opCtrLimit, Key: digest(want), Run: func(ctx context.Context) error {
		adjusted, err := limiting{l}.consult(ctx, want)
		if err == nil {
			err = limiting{l}.set(ctx, adjusted)
		}
		if err != nil {
			return sandbox.InContainer("change the limits of ", string(l.id), l.p.id, err)
		}
		telling{l.p}.told(ctx, ContainerLimited, l.p.rec.Load().Container(l.id))
		return nil
	}})
}

// limiting changes the limits of one container.
type limiting struct{ *container }

// set changes them, one change at a time.
func (l limiting) set(ctx context.Context, want *runtimeapi.LinuxContainerResources) error {
	l.limits.Lock()
	defer l.limits.Unlock()
	c := l.p.rec.Load().Container(l.id)
	if c == nil || c.State == sandbox.Creating || c.State == sandbox.Removing {
		return sandbox.NotFound("container", l.id)
	}
	if !c.Live() {
		return fail.New(errdefs.ErrFailedPrecondition, "it is %s: only what is created or runs has limits", c.State)
	}
	host := l.cfg.Bundle.Host
	oci, warnings, err := spec.Resources(want, host)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	all := merge(c.Limits(), want)
	if _, _, err := spec.Resources(all, host); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "together with the limits that stay: %w", err)
	}
	was, _, err := spec.Resources(c.Limits(), host)
	if err != nil {
		was = nil // what it was made with was taken by an earlier release
	}
	m, err := sandbox.NewResources(all)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	for _, w := range warnings {
		l.cfg.Log.Warn("a container gets less than it asked for", "pod", l.p.id, "container", l.id, "reason", w)
	}
	putBack, err := l.cfg.Cgroups.SetLimits(ctx, c.Cgroup, was, oci)
	if err != nil {
		if c := l.p.rec.Load().Container(l.id); c == nil || !c.Live() {
			return fail.New(errdefs.ErrFailedPrecondition, "it ended meanwhile: %w", err)
		}
		return limitError(err)
	}
	err = l.p.update(ctx, "container.limits", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if !c.Live() {
				return fail.New(errdefs.ErrFailedPrecondition, "it ended meanwhile")
			}
			c.Resources = m
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, putBack())
	}
	return nil
}

// setPids changes how many processes a container may have. No record keeps it: CRI has no such limit.
func (l limiting) setPids(ctx context.Context, n int64) (putBack func() error, err error) {
	l.limits.Lock()
	defer l.limits.Unlock()
	c := l.p.rec.Load().Container(l.id)
	if c == nil || !c.Live() {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "only what is created or runs has limits")
	}
	putBack, err = l.cfg.Cgroups.SetLimits(ctx, c.Cgroup, nil,
		&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}})
	if err != nil {
		return nil, limitError(err)
	}
	return putBack, nil
}

// limitError says of what kind a refusal of the kernel's is.
func limitError(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EOPNOTSUPP):
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV),
		errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSPC):
		return fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	return err
}

// merge is what holds when want is asked for where old holds. A swap limit that want does not mention goes with the
// memory limit, of which it is a part. The OOM score of processes that run is not changed.
func merge(old, want *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if old != nil {
		out = proto.Clone(old).(*runtimeapi.LinuxContainerResources)
	}
	set := func(to *int64, from int64) {
		if from != 0 {
			*to = from
		}
	}
	set(&out.CpuPeriod, want.CpuPeriod)
	set(&out.CpuQuota, want.CpuQuota)
	set(&out.CpuShares, want.CpuShares)
	set(&out.MemoryLimitInBytes, want.MemoryLimitInBytes)
	if out.MemorySwapLimitInBytes != 0 {
		set(&out.MemorySwapLimitInBytes, want.MemoryLimitInBytes)
	}
	set(&out.MemorySwapLimitInBytes, want.MemorySwapLimitInBytes)
	if want.CpusetCpus != "" {
		out.CpusetCpus = want.CpusetCpus
	}
	if want.CpusetMems != "" {
		out.CpusetMems = want.CpusetMems
	}
	for _, h := range want.HugepageLimits {
		out.HugepageLimits = withHugepages(out.HugepageLimits, h)
	}
	if len(want.Unified) > 0 {
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		maps.Copy(out.Unified, want.Unified)
	}
	return out
}

func withHugepages(all []*runtimeapi.HugepageLimit, h *runtimeapi.HugepageLimit) []*runtimeapi.HugepageLimit {
	for i, old := range all {
		if old.PageSize == h.PageSize {
			all[i] = h
			return all
		}
	}
	return append(all, h)
}

// Pod takes over what a ready pod is meant to use in all: its configuration says it from then on, to its status, and to
// containers that are made in it. The pod's cgroup is its caller's, who has set its limits.
func (s Limiter) Pod(
	ctx context.Context, id sandbox.ID, overhead, resources *runtimeapi.LinuxContainerResources,
) error {
	p, err := s.find(id)
	if err != nil {
		return err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	for what, r := range map[string]*runtimeapi.LinuxContainerResources{"overhead": overhead, "resources": resources} {
		if _, _, err := spec.Resources(r, s.cfg.Bundle.Host); err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "change the resources of pod %s: %s: %w", id, what, err)
		}
	}
	key := digest(&runtimeapi.UpdatePodSandboxResourcesRequest{Overhead: overhead, Resources: resources})
	return p.lane.Do(s.ctx, ctx, op.Op{Kind: opLimit, Key: key, Run: func(ctx context.Context) error {
		if plugins := s.cfg.Plugins; plugins != nil && p.rec.Load().State == sandbox.Ready {
			if err := plugins.PodLimits(ctx, p.rec.Load(), overhead, resources); err != nil {
				return fail.About(fail.Detail{Pod: string(id)}, "change the resources of pod %s: %w", id, pluginError(err))
			}
		}
		err := p.update(ctx, "pod.limits", func(r *sandbox.Record) error {
			if r.State != sandbox.Ready {
				return fail.New(errdefs.ErrFailedPrecondition, "change the resources of pod %s: it is %s, not ready", id, r.State)
			}
			cfg := proto.Clone(r.Config.Get()).(*runtimeapi.PodSandboxConfig)
			if cfg.Linux == nil {
				cfg.Linux = &runtimeapi.LinuxPodSandboxConfig{}
			}
			if overhead != nil {
				cfg.Linux.Overhead = overhead
			}
			if resources != nil {
				cfg.Linux.Resources = resources
			}
			m, err := sandbox.NewPodConfig(cfg)
			r.Config = m
			return err
		})
		if err == nil {
			telling{p}.told(ctx, PodLimited, nil)
		}
		return err
	}})
}
