package pod

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

type (
	criResources = runtimeapi.LinuxContainerResources
	ociResources = specs.LinuxResources
)

// Limits of a spec, as a base or a plugin sets them.
var (
	noLimits = func(*ociResources) {}
	shares77 = func(r *ociResources) { r.CPU.Shares = new(uint64(77)) }
	stride   = func(r *ociResources) { r.CPU.Cpus = "0-15:2/4" }
	maxDepth = func(r *ociResources) { r.Unified = map[string]string{"cgroup.max.depth": "3"} }
	pages    = func(limit uint64) func(*ociResources) {
		return func(r *ociResources) {
			r.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: limit}}
		}
	}
	memory = func(limit, swap int64) func(*ociResources) {
		return func(r *ociResources) { r.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &swap} }
	}
)

// TestLimitsThatPluginsSet has plugins change limits of a container whose request has some, and perhaps the base of its
// handler, too. Recorded are those of the request and of the plugins, which can be changed later as a client asks.
func TestLimitsThatPluginsSet(t *testing.T) {
	asked := func() *criResources {
		return &criResources{CpuShares: 10, MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 200}
	}
	nothing := func() *criResources { return nil }
	with := func(change func(*criResources)) func() *criResources {
		return func() *criResources {
			r := asked()
			change(r)
			return r
		}
	}
	shares := with(func(r *criResources) { r.CpuShares = 77 })
	swap := func(limit, swap int64) func() *criResources {
		return with(func(r *criResources) { r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = limit, swap })
	}
	for name, c := range map[string]struct {
		base, plugins func(*ociResources)
		want          func() *criResources
	}{
		"nothing":                  {noLimits, noLimits, nothing},
		"shares":                   {noLimits, shares77, shares},
		"memory":                   {noLimits, memory(300, 300), swap(300, 300)},
		"memory as it is, no swap": {noLimits, memory(100, 100), swap(100, 100)},
		"swap":                     {noLimits, memory(100, 300), swap(100, 300)},
		"huge pages, of the base and of the plugins": {pages(1), pages(2), with(func(r *criResources) {
			r.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 2}}
		})},
		"shares, huge pages of the base":  {pages(1), shares77, shares},
		"shares, a stride of the base":    {stride, shares77, shares},
		"shares, a max.depth of the base": {maxDepth, shares77, shares},
	} {
		cfg, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{
			Linux: &runtimeapi.LinuxContainerConfig{Resources: asked()},
		})
		if err != nil {
			t.Fatal(err)
		}
		res, _, err := spec.Resources(asked(), spec.Host{SwapAccounting: true})
		if err != nil {
			t.Fatal(err)
		}
		c.base(res)
		before := copyLimits(res)
		c.plugins(res)
		got, err := adjustedLimits(&sandbox.Container{Config: cfg}, before, res, spec.Host{})
		if err != nil || !proto.Equal(got.Get(), c.want()) {
			t.Errorf("%s: recorded are %v, wanted %v; %v", name, got.Get(), c.want(), err)
		}
		if _, has := res.Unified["cgroup.max.depth"]; has != (c.base != nil && before.Unified != nil) {
			t.Errorf("%s: the spec has %v", name, res.Unified)
		}
	}
}

// adjusting are plugins that set limits in a container's spec.
type adjusting struct {
	asked
	set func(*ociResources)
}

func (a *adjusting) Adjust(
	_ context.Context, _ *sandbox.Record, _ *sandbox.Container, sp *specs.Spec,
) ([]Change, error) {
	sp.Linux.Resources.CPU = &specs.LinuxCPU{}
	a.set(sp.Linux.Resources)
	return nil, nil
}

// TestLimitsThatNobodyCouldAskFor has plugins set limits that no request could have, though a kernel takes them. They
// could not be read of the record, nor changed later, so the container is refused.
func TestLimitsThatNobodyCouldAskFor(t *testing.T) {
	b, a := open(t), &adjusting{}
	b.cfg.Plugins = a
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("p"), "")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		set     func(*ociResources)
		refused string // what the error names
	}{
		"shares": {shares77, ""}, "stride": {stride, `"0-15:2/4"`}, "depth": {maxDepth, "cgroup.max.depth"},
	} {
		a.set = c.set
		id, err := b.Create(t.Context(), pod, containerConfig(name))
		if c.refused != "" {
			if !fail.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := b.Catalog.GetContainer(id); err != nil || got.Limits().GetCpuShares() != 77 {
			t.Errorf("%s: recorded are %v, %v", name, got.Limits(), err)
		}
	}
}
