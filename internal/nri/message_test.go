package nri

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestLimitsAsPluginsWantThem(t *testing.T) {
	asked := func(limit, swap int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuShares: 512, OomScoreAdj: 7, MemoryLimitInBytes: limit,
			MemorySwapLimitInBytes: swap}
	}
	// The adaptation gives back all that was asked for, with what plugins changed of it.
	from := func(change func(*api.LinuxMemory), want *runtimeapi.LinuxContainerResources) *api.LinuxResources {
		r := fromLimits(want)
		change(r.Memory)
		return r
	}
	limit := func(n int64) func(*api.LinuxMemory) { return func(m *api.LinuxMemory) { m.Limit = api.Int64(n) } }
	both := func(m *api.LinuxMemory) { m.Limit, m.Swap = api.Int64(int64(200)), api.Int64(int64(300)) }
	for name, c := range map[string]struct {
		want *runtimeapi.LinuxContainerResources
		by   *api.LinuxResources
		has  *runtimeapi.LinuxContainerResources
	}{
		"nothing": {asked(100, 100), nil, asked(100, 100)},
		"ignored": {
			asked(100, 100), &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}, Unified: map[string]string{}},
			asked(100, 100)},
		"more, no swap":    {asked(100, 100), from(limit(200), asked(100, 100)), asked(200, 200)},
		"less, no swap":    {asked(100, 100), from(limit(50), asked(100, 100)), asked(50, 50)},
		"more, some swap":  {asked(100, 400), from(limit(200), asked(100, 400)), asked(200, 400)},
		"swap by a plugin": {asked(100, 100), from(both, asked(100, 100)), asked(200, 300)},
		"swap not told":    {asked(100, 0), from(both, asked(100, 0)), asked(200, 300)},
		"none":             {asked(100, 0), from(limit(200), asked(100, 0)), asked(200, 0)},
	} {
		if got := adjust(c.want, limits(c.by)); !proto.Equal(got, c.has) {
			t.Errorf("%s: got %v, wanted %v", name, got, c.has)
		}
	}
}
