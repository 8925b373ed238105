package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup/limits"
	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// containerLimits changes the limits of one container, one change at a time.
type containerLimits struct {
	mu sync.Mutex // held during a change; the ledger's may be locked below it
	// lane is for the changes that clients ask for. A stop holds the container's own for as long as its grace period.
	lane op.Lane
}

// set changes the limits that want has.
func (m *containerLimits) set(ctx context.Context, l *container, want *runtimeapi.LinuxContainerResources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := l.record()
	if c == nil || c.State == sandbox.Creating || c.State == sandbox.Removing {
		return sandbox.NotFound("container", l.id)
	}
	if !c.Live() {
		return fail.New(errdefs.ErrFailedPrecondition, "it is %s: only what is created or runs has limits", c.State)
	}
	if err := spec.CheckOOMScore(want.GetOomScoreAdj()); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	host := l.bundle.Host
	oci, warnings, err := spec.Resources(want, host)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	if score := want.GetOomScoreAdj(); score != 0 && score != c.Limits().GetOomScoreAdj() {
		warnings = append(warnings, fmt.Sprintf("oom_score_adj %d: it is that of a process, and stays as it is", score))
	}
	all := merge(c.Limits(), want)
	if _, _, err := spec.Resources(all, host); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "together with the limits that stay: %w", err)
	}
	keepSwap(oci, want, all)
	was, _, err := spec.Resources(c.Limits(), host)
	if err != nil {
		was = nil // what it was made with was taken by an earlier release
	}
	changed, err := sandbox.NewResources(all)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	for _, w := range warnings {
		l.cfg.Log.Warn("a container gets less than it asked for", "pod", l.p.id, "container", l.id, "reason", w)
	}
	putBack, err := l.cfg.Cgroups.SetLimits(ctx, c.Cgroup, limits.Was{Limits: was, Peers: peersOf(l)}, oci)
	if err != nil {
		if c := l.record(); c == nil || !c.Live() {
			return fail.New(errdefs.ErrFailedPrecondition, "it ended meanwhile: %w", err)
		}
		return limitError(err)
	}
	err = l.p.update(ctx, "container.limits", func(r *sandbox.Record) error {
		return r.Edit(l.id, func(c *sandbox.Container) error {
			if !c.Live() {
				return fail.New(errdefs.ErrFailedPrecondition, "it ended meanwhile")
			}
			c.Resources = changed
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, putBack())
	}
	return nil
}

// peersOf are the cgroups and the CPU shares of the other containers that the runtime of this one has made and that
// live. Those that were made nearest in time come first: the runtime may have been another version at other times.
func peersOf(l *container) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		r := l.p.record()
		own := r.Container(l.id)
		if own == nil {
			return
		}
		var peers []*sandbox.Container
		for _, p := range l.p.s.Catalog.index.Load().pods {
			other := p.record()
			for _, c := range other.Containers {
				if other.Runtime == r.Runtime && c.ID != l.id && c.Live() && c.Limits().GetCpuShares() > 0 {
					peers = append(peers, c)
				}
			}
		}
		slices.SortFunc(peers, func(a, b *sandbox.Container) int {
			return cmp.Compare(a.CreatedAt.Sub(own.CreatedAt).Abs(), b.CreatedAt.Sub(own.CreatedAt).Abs())
		})
		for _, c := range peers {
			if !yield(c.Cgroup, uint64(c.Limits().GetCpuShares())) {
				return
			}
		}
	}
}

// keepSwap has a change of the memory limit alone leave the swap that a kubelet gives by the cgroup's own file
// (memory.swap.max of cgroup v2): a limit of memory without one of swap takes all swap away.
func keepSwap(oci *specs.LinuxResources, want, all *runtimeapi.LinuxContainerResources) {
	const file = "memory.swap.max"
	kept, given := all.GetUnified()[file]
	if oci.Memory == nil || want.GetMemorySwapLimitInBytes() != 0 || !given {
		return
	}
	oci.Unified = maps.Clone(oci.Unified)
	if oci.Unified == nil {
		oci.Unified = map[string]string{}
	}
	oci.Unified[file] = kept
}

// setPids changes how many processes a container may have. No record keeps it: CRI has no such limit.
func (m *containerLimits) setPids(ctx context.Context, l *container, n int64) (putBack func() error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := l.record()
	if c == nil || !c.Live() {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "only what is created or runs has limits")
	}
	putBack, err = l.cfg.Cgroups.SetLimits(ctx, c.Cgroup, limits.Was{},
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
