package meter

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/sandbox"
)

// TestSumTellsNoZeros adds up the usage of containers on a node that does not count processes.
func TestSumTellsNoZeros(t *testing.T) {
	one := Use{Usage: cgroup.Usage{
		At:  time.Now(),
		CPU: cgroup.CPU{Known: true, Usage: 5, Throttled: 3, Periods: 4},
		Memory: cgroup.Memory{Known: true, Usage: 10, Cache: 5, Kernel: 2, OOMKills: 1, LimitHits: 7, Inactive: 3,
			Peak: 20, OwnKnown: true, OwnFaults: 1},
		Swap: cgroup.Swap{Known: true, Usage: 4},
	}}
	u := sum([]Use{one, one, {}})
	m := u.Memory
	if u.Tasks.Known || !u.Swap.Known || u.Swap.Usage != 8 || u.CPU.Usage != 10 || u.CPU.Throttled != 6 ||
		m.Peak != 0 || m.OwnKnown || m.Cache != 10 || m.Kernel != 4 || m.OOMKills != 2 || m.LimitHits != 14 ||
		m.Inactive != 6 {
		t.Errorf("%+v", u)
	}
	if unknown := sum([]Use{{}}); unknown.CPU.Known || unknown.Memory.Known {
		t.Errorf("of what is unknown: %+v", unknown)
	}
}

// TestPodsOfWhichNothingIsRead asks about pods without a cgroup and without a part: one whose container lives uses
// what nobody knows, one whose container has ended uses nothing.
func TestPodsOfWhichNothingIsRead(t *testing.T) {
	ctr := &sandbox.Container{ID: "c", State: sandbox.Running}
	m := open(t, ctr)
	for state, known := range map[sandbox.State]bool{
		sandbox.Created: false, sandbox.Running: false, sandbox.Exited: true, sandbox.Creating: true,
	} {
		ctr.State = state
		u, ok := m.Pod(&m.record, cgroup.Stats, nil)
		if !ok || u.CPU.Known != known || u.Memory.Known != known || u.Tasks.Known != known || u.Swap.Known {
			t.Errorf("with a container that is %v: %+v, %v", state, u, ok)
		}
	}
}

// TestRateOfASandboxMadeAgain asks about a pod whose cgroup is older than its sandbox, as one that a kubelet made for
// the sandbox before: what that used is no rate. A cgroup of Berth's own is as old as its pod.
func TestRateOfASandboxMadeAgain(t *testing.T) {
	for parent, want := range map[string]bool{"/kubepods/pod1": false, "": true} {
		m := open(t)
		config, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: parent}})
		if err != nil {
			t.Fatal(err)
		}
		m.record.Config, m.record.CreatedAt = config, time.Now().Add(-5*time.Second)
		used := func(d time.Duration) []Use {
			return []Use{{Usage: cgroup.Usage{CPU: cgroup.CPU{Known: true, Usage: uint64(d)}}}}
		}
		const before = 5 * time.Hour
		if u, _ := m.Pod(&m.record, cgroup.Stats, used(before)); u.Rated != want {
			t.Errorf("cgroup parent %q: at first %.1f cores are told (%v)", parent, float64(u.NanoCores)/1e9, u.Rated)
		}
		time.Sleep(2 * rateShortest)
		u, _ := m.Pod(&m.record, cgroup.Stats, used(before+time.Millisecond))
		if !u.Rated || !want && u.NanoCores > 1e9 {
			t.Errorf("cgroup parent %q: then %.1f cores are told (%v)", parent, float64(u.NanoCores)/1e9, u.Rated)
		}
	}
}
