package meter

import (
	"testing"
	"time"

	"berth/internal/cgroup"
)

// TestSumTellsNoZeros adds up the usage of containers on a node that does not count processes, and of no containers.
func TestSumTellsNoZeros(t *testing.T) {
	one := Use{Usage: cgroup.Usage{
		At:     time.Now(),
		CPU:    cgroup.CPU{Known: true, Usage: 5, Throttled: 3, Periods: 4},
		Memory: cgroup.Memory{Known: true, Usage: 10, Cache: 5, Kernel: 2, OOMKills: 1, LimitHits: 7, Inactive: 3},
		Swap:   cgroup.Swap{Known: true, Usage: 4},
	}}
	u := sum([]Use{one, one, {}})
	m := u.Memory
	if u.Tasks.Known || !u.Swap.Known || u.Swap.Usage != 8 || u.CPU.Usage != 10 || u.CPU.Throttled != 6 ||
		m.Cache != 10 || m.Kernel != 4 || m.OOMKills != 2 || m.LimitHits != 14 || m.Inactive != 6 {
		t.Errorf("%+v", u)
	}
	if none := sum(nil); !none.CPU.Known || !none.Memory.Known || !none.Tasks.Known || none.Swap.Known {
		t.Errorf("of nothing: %+v", none)
	}
	if unknown := sum([]Use{{}}); unknown.CPU.Known || unknown.Memory.Known {
		t.Errorf("of what is unknown: %+v", unknown)
	}
}
