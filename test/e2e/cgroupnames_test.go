package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// calledAs is how a container's cgroup is called by a value of the key cgroup_names.
func calledAs(n *node.Node, names, id string) string {
	systemd := node.GroupsOf(n).Systemd
	switch {
	case names == "berth":
		return node.GroupsOf(n).Container(id)
	case names == "containerd" && systemd:
		return "cri-containerd-" + id + ".scope"
	case names == "crio" && systemd:
		return "crio-" + id + ".scope"
	case names == "crio":
		return "crio-" + id
	}
	return id
}

// TestCgroupNames has the cgroups of containers called as those of other runtimes, and changes the key under containers
// that are there: they keep their cgroups, and all that is read, changed and ended by those still is.
func TestCgroupNames(t *testing.T) {
	own(t, func(r rig) {
		parent := node.GroupsOf(r.n).KubePod("names")
		p := r.pod(sharedPID, func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = parent })
		var all []*ctr
		for _, names := range []string{"berth", "crio", "containerd", "crio"} {
			r.configure(fmt.Sprintf("cgroup_names = %q\n", names))
			r.ok(r.n.Restart())
			c := p.start(p.as(busybox(fmt.Sprintf("c%d", len(all)), "sleep 54321 & sleep 54321 & echo up; wait",
				limited(&v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib}))))
			c.logged("up")
			c.wantGroup(parent + "/" + calledAs(r.n, names, c.cid))
			all = append(all, c)
			for _, c := range all {
				c.useGroup()
			}
		}
		// A container that is made and not started is undone by a daemon that names it otherwise.
		created := p.create(p.as(busybox("created", "true")))
		r.configure("cgroup_names = \"berth\"\n")
		r.ok(r.n.Restart())
		r.ok(r.n.Runtime.RemoveContainer(ctx(), created.cid))
		for _, c := range all {
			r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
			if n := countProcesses("54321", c.cid); n != 0 {
				r.Errorf("%d processes of a container still run", n)
			}
		}
		// The pod's own init was named by the first of them; what is left is seen when the node is closed.
		other := r.pod(sharedPID, func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-other" })
		r.eventually("one init of the pod is in its own cgroup", func() bool { // it is started, and may not be itself yet
			return countProcesses("init", calledAs(r.n, "berth", other.id)) == 1
		})
	})
}

// TestCgroupNamesOfInit has the cgroup of a pod's init called as CRI-O calls that of a pod.
func TestCgroupNamesOfInit(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime, Config: "cgroup_names = \"crio\"\n"})
			r.pull("busybox:latest")
			p := r.pod(sharedPID)
			r.eventually("the pod's init is in a cgroup of that name", func() bool {
				return countProcesses("init", "/"+calledAs(r.n, "crio", p.id)) == 1
			})
			r.configure("cgroup_names = \"containerd\"\n")
			r.ok(r.n.Restart())
			r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
			if n := countProcesses("init", p.id); n != 0 {
				r.Errorf("%d inits are left of a pod that was stopped", n)
			}
		})
	}
}

// wantGroup checks in which cgroup the container's process is.
func (c *ctr) wantGroup(want string) {
	c.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.pidOf(c.cid)))
	c.ok(err)
	if !strings.Contains(string(groups), ":"+want+"\n") && !strings.Contains(string(groups), ":"+want+"/container\n") {
		c.Errorf("the container is not in %s but in\n%s", want, groups)
	}
}

// useGroup reads and changes by the container's cgroup what the kubelet does.
func (c *ctr) useGroup() {
	c.Helper()
	if used := c.stats().GetMemory().GetWorkingSetBytes().GetValue(); used == 0 {
		c.Errorf("container %s uses no memory", c.cid)
	}
	c.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 96 * mib}))
	if got := strings.Fields(c.limits())[0]; got != "100663296" {
		c.Errorf("container %s sees %s as its limit", c.cid, got)
	}
	c.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 64 * mib}))
}
