package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// writable is a node with a handler that has cgroup_writable.
func writable(t *testing.T, runtime string) rig {
	t.Helper()
	program, err := exec.LookPath(runtime)
	if err != nil {
		t.Fatal(err)
	}
	r := ownNode(t, node.Options{
		Runtime: runtime, Tables: fmt.Sprintf("\n[runtimes.writable]\npath = %q\ncgroup_writable = true\n", program),
	})
	r.pull("busybox:latest")
	return r
}

// delegate makes two cgroups, moves the container's process into one, and gives the other a limit.
const delegate = `cd /sys/fs/cgroup && cat /proc/self/cgroup && mkdir own other && echo $$ > own/cgroup.procs &&
	echo +memory +pids > cgroup.subtree_control && echo 33554432 > other/memory.max && cat other/memory.max && echo up
	sleep 1000`

// TestCgroupWritable has a container make cgroups of its own, with limits of their own, below limits that it cannot
// raise.
func TestCgroupWritable(t *testing.T) {
	onV2(t)
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := writable(t, runtime)
			limited := both(confined(v1.SecurityProfile_Unconfined, ""), resources(func(l *v1.LinuxContainerResources) {
				l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = 64<<20, 64<<20
				l.Unified = map[string]string{"pids.max": "77"}
			}))
			filtered, open := seccomp(v1.SecurityProfile_RuntimeDefault, ""), seccomp(v1.SecurityProfile_Unconfined, "")
			const mkdir = "mkdir /sys/fs/cgroup/own 2>&1 | grep -o 'Read-only'"
			r.wantText("a handler without the key", r.pod().output(busybox("plain", mkdir, limited, filtered)), "Read-only")

			p := r.podOf("writable")
			r.sub("filtered", func(r rig) { p.on(r).delegates(both(limited, filtered)) })
			r.sub("in a user namespace", func(r rig) {
				onSystemd(r) // with cgroupfs runc 1.1 leaves the cgroup to the host's root
				inside := r.podOf("writable", inUserns)
				inside.delegates(both(limited, open, inside.like()))
			})
			powerful := both(filtered, caps([]string{"SYS_ADMIN"}, nil))
			for name, edits := range map[string]edit{"open": open, "powerful": powerful} {
				_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox(name, "true", limited, edits), p.config)
				r.wantCode(err, codes.InvalidArgument, "cgroup_writable", "hostUsers: false", "RuntimeDefault")
				p.wantNoContainer(name)
			}
		})
	}
}

// delegates runs a container that makes cgroups, and then has it try to change its own limits: as it is, and from a
// cgroup namespace further down, which the kernel does not hold to them.
func (p *pod) delegates(edits edit) {
	p.Helper()
	c := p.start(busybox("main", delegate, edits))
	c.logged("up\n")
	p.wantText("what it did", c.text(""), "0::/\n33554432\nup")
	p.wantText("an exec, since", c.exec("echo", "there"), "there")
	limits := func() string {
		return c.setting("memory.max") + "; " + c.setting("memory.swap.max") + "; " + c.setting("pids.max")
	}
	before := limits()
	if !strings.Contains(before, "67108864") || !strings.Contains(before, "77") {
		p.Errorf("the limits are %s", before)
	}
	for _, file := range []string{"memory.max", "memory.swap.max", "pids.max"} {
		for _, how := range []string{"write", "nested"} {
			script := "echo $$ > /sys/fs/cgroup/own/cgroup.procs && exec /webapp " + how + " /sys/fs/cgroup/" + file + " max"
			out := c.exec("sh", "-c", script)
			if !strings.Contains(out, "permitted") && !strings.Contains(out, "permission denied") {
				p.Errorf("%s %s: %s", how, file, out)
			}
		}
	}
	if after := limits(); after != before {
		p.Errorf("the limits were %s and are %s", before, after)
	}
	p.ok(killProcess(p.monitor()))
	p.eventually("an exec under the next monitor", func() bool {
		out, _, err := c.tryExec(timeouts.For(5*time.Second), "echo there")
		return err == nil && out == "there\n"
	})
	// The processes of all its cgroups end with it, and its cgroups go: the node looks for what is left.
	p.ok(p.n.Runtime.StopContainer(ctx(), c.cid, 0))
}
