package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

const mib = 1 << 20

// limited is a container with these limits.
func limited(res *v1.LinuxContainerResources) edit {
	return func(c *v1.ContainerConfig) {
		if c.Linux == nil {
			c.Linux = &v1.LinuxContainerConfig{}
		}
		c.Linux.Resources = res
	}
}

func (c *ctr) limit(res *v1.LinuxContainerResources) error {
	return c.n.Runtime.UpdateContainerResources(ctx(), c.cid, &v1.ContainerResources{Linux: res})
}

// limits are what the container sees of its own cgroup: memory, quota and period, shares or weight, processors.
func (c *ctr) limits() string {
	c.Helper()
	return strings.Join(strings.Fields(c.exec("sh", "-c", `cd /sys/fs/cgroup
if [ -e memory.max ]; then cat memory.max cpu.max cpu.weight cpuset.cpus
else cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu/cpu.shares cpuset/cpuset.cpus; fi`)), " ")
}

// wantLimits checks the status, and, word by word, what the container sees; a word - is not looked at.
func (c *ctr) wantLimits(status *v1.LinuxContainerResources, seen string) {
	c.Helper()
	if got := c.status().GetResources().GetLinux(); !proto.Equal(got, status) {
		c.Errorf("the status has %v, wanted %v", got, status)
	}
	got, want := strings.Fields(c.limits()), strings.Fields(seen)
	for i := range want {
		if i >= len(got) || want[i] != "-" && want[i] != got[i] {
			c.Errorf("the container sees %q, wanted %q", got, want)
			return
		}
	}
}

// TestUpdateContainerResources changes the limits of a created, a running and an exited container.
func TestUpdateContainerResources(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		first := &v1.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 150000, CpuShares: 512,
			MemoryLimitInBytes: 64 * mib, CpusetCpus: "0", OomScoreAdj: 500}
		c := p.create(
			busybox("main",
				`x=$(head -c 30000000 /dev/zero | tr '\0' x); echo full; while :; do sleep 1000 & wait; done; echo $x`,
				limited(first)))
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 128 * mib}))
		r.ok(r.n.Runtime.StartContainer(ctx(), c.cid))
		c.logged("full")
		now := proto.Clone(first).(*v1.LinuxContainerResources)
		now.MemoryLimitInBytes = 128 * mib
		c.wantLimits(now, "134217728 150000 100000 - 0")

		r.ok(c.limit(&v1.LinuxContainerResources{CpuQuota: 70000, CpuPeriod: 40000, CpuShares: 1024, OomScoreAdj: 700}))
		now.CpuQuota, now.CpuPeriod, now.CpuShares = 70000, 40000, 1024
		c.wantLimits(now, "134217728 70000 40000 - 0")
		r.ok(c.limit(&v1.LinuxContainerResources{})) // says nothing, changes nothing
		r.ok(c.limit(&v1.LinuxContainerResources{CpusetCpus: "0-1"}))
		now.CpusetCpus = "0-1"
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 96 * mib, CpuQuota: -1}))
		now.MemoryLimitInBytes, now.CpuQuota = 96*mib, -1
		c.wantLimits(now, "100663296 - 40000 - 0-1")
		before := c.limits()

		for _, bad := range []struct {
			res   *v1.LinuxContainerResources
			code  codes.Code
			words []string
		}{
			{&v1.LinuxContainerResources{CpuShares: 7, MemoryLimitInBytes: 8 * mib}, codes.FailedPrecondition,
				[]string{c.cid, "memory", "in use"}},
			{&v1.LinuxContainerResources{CpuShares: 7, CpusetCpus: "0-4000"}, codes.InvalidArgument,
				[]string{c.cid, "cpuset.cpus"}},
			{&v1.LinuxContainerResources{CpuShares: 7, CpusetCpus: "first"}, codes.InvalidArgument, []string{"cpuset_cpus"}},
			{&v1.LinuxContainerResources{CpuShares: 7, CpuPeriod: 7}, codes.InvalidArgument, []string{"period"}},
			{&v1.LinuxContainerResources{CpuShares: 7, OomScoreAdj: 5000}, codes.InvalidArgument,
				[]string{"oom_score_adj 5000"}},
			{&v1.LinuxContainerResources{CpuShares: 7, MemoryLimitInBytes: -9}, codes.InvalidArgument,
				[]string{"memory_limit_in_bytes"}},
			{&v1.LinuxContainerResources{CpuShares: 7, Unified: map[string]string{"memory.hi": "1"}}, codes.Unknown, nil},
		} {
			err := c.limit(bad.res)
			if bad.code == codes.Unknown { // which code depends on the cgroups of this machine
				bad.code = codeOf(err)
			}
			if err == nil {
				r.Errorf("%v is taken", bad.res)
			}
			r.wantCode(err, bad.code, bad.words...)
			if after := c.limits(); after != before {
				r.Errorf("%v was refused, and left %s, was %s", bad.res, after, before)
			}
		}
		c.wantLimits(now, before)
		if info := p.runtimeSpec(c); !strings.Contains(info, `"limit":100663296`) || !strings.Contains(info, `"cpus":"0-1"`) {
			r.Errorf("the spec that is shown has the old limits: %s", info)
		}
		r.wantText("exec", c.exec("echo", "still"), "still")

		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		r.wantCode(c.limit(&v1.LinuxContainerResources{CpuShares: 7}), codes.FailedPrecondition, c.cid, "exited")
		if got := c.status().GetResources().GetLinux(); !proto.Equal(got, now) {
			r.Errorf("the status of what has ended has %v, wanted %v", got, now)
		}
		c.cid = strings.Repeat("0", 64)
		r.wantCode(c.limit(&v1.LinuxContainerResources{CpuShares: 7}), codes.NotFound, c.cid)
	})
}

// runtimeSpec is the resources of the spec in a verbose status.
func (p *pod) runtimeSpec(c *ctr) string {
	p.Helper()
	resp, err := p.n.Runtime.ContainerStatus(ctx(), c.cid, true)
	p.ok(err)
	var info struct {
		RuntimeSpec struct {
			Linux struct{ Resources json.RawMessage }
		}
	}
	p.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	return string(info.RuntimeSpec.Linux.Resources)
}

// TestLimitsInTheGracePeriod changes the limits of a container that is asked to end and does not: it runs still.
func TestLimitsInTheGracePeriod(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "trap 'echo asked' TERM; echo up; while ! [ -e /tmp/go ]; do sleep 0.1; done"))
		c.logged("up")
		stopped := make(chan error, 1)
		go func() { stopped <- r.n.Runtime.StopContainer(ctx(), c.cid, 300) }()
		c.logged("asked")
		r.ok(c.limit(&v1.LinuxContainerResources{CpusetCpus: "0"}))
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING ||
			st.GetResources().GetLinux().GetCpusetCpus() != "0" {
			r.Errorf("%v", st)
		}
		c.release()
		r.ok(<-stopped)
	})
}

// TestResourcesOutliveTheDaemon restarts the daemon after limits have changed.
func TestResourcesOutliveTheDaemon(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000", limited(&v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib})))
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 32 * mib, CpuQuota: 130000, CpuPeriod: 100000}))
		pod := &v1.LinuxContainerResources{MemoryLimitInBytes: 80 * mib, CpuShares: 300}
		update := &v1.UpdatePodSandboxResourcesRequest{PodSandboxId: p.id, Resources: pod,
			Overhead: &v1.LinuxContainerResources{CpuShares: 20}}
		_, err := r.n.Runtime.UpdatePodSandboxResources(ctx(), update)
		r.ok(err)
		r.ok(r.n.Restart())
		c.wantLimits(&v1.LinuxContainerResources{MemoryLimitInBytes: 32 * mib, CpuQuota: 130000, CpuPeriod: 100000},
			"33554432 130000 100000")
		resp, err := r.n.Runtime.PodSandboxStatus(ctx(), p.id, true)
		r.ok(err)
		for _, want := range []string{`"overhead":{"cpuShares":"20"}`, `"cpuShares":"300"`,
			`"memoryLimitInBytes":"83886080"`} {
			if !strings.Contains(strings.ReplaceAll(resp.Info["info"], " ", ""), want) {
				r.Errorf("the pod's configuration lacks %s: %s", want, resp.Info["info"])
			}
		}
		_, err = r.n.Runtime.RunPodSandbox(ctx(), p.config, "")
		r.ok(err) // the same request again finds the pod still
		update.Resources = &v1.LinuxContainerResources{CpuPeriod: -1}
		_, err = r.n.Runtime.UpdatePodSandboxResources(ctx(), update)
		r.wantCode(err, codes.InvalidArgument, p.id, "cpu_period")
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		update.Resources = pod
		_, err = r.n.Runtime.UpdatePodSandboxResources(ctx(), update)
		r.wantCode(err, codes.FailedPrecondition, p.id, "stopped")
		update.PodSandboxId = strings.Repeat("0", 64)
		_, err = r.n.Runtime.UpdatePodSandboxResources(ctx(), update)
		r.wantCode(err, codes.NotFound, update.PodSandboxId)
	})
}

// TestLimitsWithoutRoomForTheRecord changes limits where the record cannot be written: then they stay.
func TestLimitsWithoutRoomForTheRecord(t *testing.T) {
	r := ownNode(t, node.Options{Fault: true})
	r.pull("busybox:latest")
	p := r.pod()
	was := &v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib}
	c := p.start(busybox("main", "sleep 1000", limited(was)))
	r.ok(r.n.Kill9())
	r.ok(r.n.Start("BERTH_FAULT=record.container.limits.before=error"))
	if err := c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 32 * mib}); err == nil {
		r.Error("the change went through")
	}
	c.wantLimits(was, "67108864")
}
