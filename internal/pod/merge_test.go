package pod

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// allLimits are a set of limits in which each is set.
func allLimits() *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 1 << 26, MemorySwapLimitInBytes: 1 << 27,
		CpusetCpus: "0-1", CpusetMems: "0", OomScoreAdj: 10,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}},
		Unified:        map[string]string{"memory.high": "1"},
	}
}

// TestLimitsAreMerged changes each limit by itself: it takes the new value, and all others keep theirs.
func TestLimitsAreMerged(t *testing.T) {
	type resources = runtimeapi.LinuxContainerResources
	for name, c := range map[string]struct {
		want *resources
		then func(*resources)
	}{
		"nothing":    {&resources{}, func(*resources) {}},
		"cpu period": {&resources{CpuPeriod: 7}, func(r *resources) { r.CpuPeriod = 7 }},
		"cpu quota":  {&resources{CpuQuota: 7}, func(r *resources) { r.CpuQuota = 7 }},
		"cpu shares": {&resources{CpuShares: 7}, func(r *resources) { r.CpuShares = 7 }},
		"memory and its swap": {&resources{MemoryLimitInBytes: 7}, func(r *resources) {
			r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 7, 7
		}},
		"swap":            {&resources{MemorySwapLimitInBytes: 7}, func(r *resources) { r.MemorySwapLimitInBytes = 7 }},
		"cpus":            {&resources{CpusetCpus: "1"}, func(r *resources) { r.CpusetCpus = "1" }},
		"mems":            {&resources{CpusetMems: "1"}, func(r *resources) { r.CpusetMems = "1" }},
		"oom score stays": {&resources{OomScoreAdj: 7}, func(*resources) {}},
		"huge pages": {&resources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 7}}},
			func(r *resources) { r.HugepageLimits[0].Limit = 7 }},
		"unified": {&resources{Unified: map[string]string{"a": "b"}}, func(r *resources) { r.Unified["a"] = "b" }},
	} {
		expected := allLimits()
		c.then(expected)
		old := allLimits()
		if got := merge(old, c.want); !proto.Equal(got, expected) {
			t.Errorf("%s: %v, want %v", name, got, expected)
		}
		if !proto.Equal(old, allLimits()) {
			t.Errorf("%s: what held before has changed", name)
		}
	}
	if got := merge(nil, &resources{CpuQuota: 7}); !proto.Equal(got, &resources{CpuQuota: 7}) {
		t.Errorf("where nothing held before: %v", got)
	}
}
