package pod

import (
	"context"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// TestSwapOutlivesAMemoryUpdate changes the memory limit alone of a container whose kubelet gave it swap by the file of
// cgroup v2 (LimitedSwap): it keeps that.
func TestSwapOutlivesAMemoryUpdate(t *testing.T) {
	b := open(t)
	b.cfg.Bundle.Host.CgroupV2, b.cfg.Bundle.Host.SwapAccounting = true, true
	g := &groups{Cgroups: b.cfg.Cgroups}
	b.cfg.Cgroups = g
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	const swap = "memory.swap.max"
	cfg := containerConfig("c")
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: 100 << 20, Unified: map[string]string{swap: "50000000"},
	}
	ctr, err := b.Create(t.Context(), pod, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want *runtimeapi.LinuxContainerResources
		swap string
	}{
		{&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 120 << 20}, "50000000"},
		{&runtimeapi.LinuxContainerResources{CpuShares: 7}, ""},
		{&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 130 << 20, MemorySwapLimitInBytes: 140 << 20}, ""},
		{&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 120 << 20, Unified: map[string]string{swap: "7"}}, "7"},
	} {
		if err := b.Limiter.Container(t.Context(), ctr, c.want); err != nil {
			t.Fatal(err)
		}
		if got := g.set[len(g.set)-1].Unified[swap]; got != c.swap {
			t.Errorf("%v: the cgroup gets %s %q, wanted %q", c.want, swap, got, c.swap)
		}
	}
}

// sharer gives each container CPU shares.
type sharer struct{ asked }

func (sharer) Adjust(_ context.Context, _ *sandbox.Record, _ *sandbox.Container, sp *specs.Spec) ([]Change, error) {
	n := uint64(700)
	sp.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &n}
	return nil, nil
}

// TestPluginLeavesSwapAlone has a plugin change what is not memory: the status tells the swap that the container has.
func TestPluginLeavesSwapAlone(t *testing.T) {
	b := open(t)
	b.cfg.Bundle.Host.SwapAccounting = true
	b.cfg.Plugins = &sharer{}
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := containerConfig("c")
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: 100 << 20, MemorySwapLimitInBytes: 150 << 20,
	}
	ctr, err := b.Create(t.Context(), pod, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, c, err := b.Catalog.GetContainer(ctr)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Limits(); got.MemorySwapLimitInBytes != 150<<20 || got.CpuShares != 700 {
		t.Errorf("%v", got)
	}
}
