package e2e

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// TestDefaultsOfAContainer has a container that asks for nothing tell what it has, as docs/coming-from.md says.
func TestDefaultsOfAContainer(t *testing.T) {
	each(t, func(r rig) {
		limits, err := exec.Command("sh", "-c", "ulimit -n; ulimit -H -n").Output()
		r.ok(err) // the daemon has those of this test
		p := r.pod()
		for what, c := range map[string]struct{ script, want string }{
			// AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, NET_RAW, SETFCAP, SETGID,
			// SETPCAP, SETUID, SYS_CHROOT
			"capabilities": {"grep -E 'Cap(Eff|Prm|Bnd)' /proc/self/status | cut -f2 | uniq", "00000000a80425fb"},
			"shm":          {"set -- $(df -k /dev/shm | tail -1); echo $2", "65536"},
			"processes": {"cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true",
				"max"},
			"writable cgroups": {"grep -E ' /sys/fs/cgroup[^ ]* cgroup2? ' /proc/mounts | grep -v ' ro,'; true", ""},
			"synced":           {"grep '^overlay / ' /proc/mounts | grep -vc volatile; true", "0"},
			"ulimits":          {"ulimit -n; ulimit -H -n", string(limits)},
		} {
			got := p.output(busybox(strings.ReplaceAll(what, " ", "-"), c.script))
			r.wantText(what, got, c.want)
		}
	})
}

// TestNameOfAPod is about pods that ask for no hostname.
func TestNameOfAPod(t *testing.T) {
	const script = "hostname; cat /etc/hostname; echo $HOSTNAME"
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Hostname = "" })
		r.wantText("a pod", p.output(busybox("main", script)), strings.Repeat(p.config.Metadata.Name+"\n", 3))
		node, err := os.Hostname()
		r.ok(err)
		host := r.pod(hostNetwork, func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-host" })
		r.wantText("a pod with the node's network", host.output(busybox("main", "hostname; echo $HOSTNAME")),
			node+"\n"+node)
	})
}

// TestStopWhoseClientGoes stops a container that does not listen, for a client that goes away: it ends at the deadline.
func TestStopWhoseClientGoes(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(webapp("main", "stubborn"))
		c.logged("ready")
		leaving, cancel := context.WithTimeout(ctx(), timeouts.For(500*time.Millisecond))
		defer cancel()
		r.wantCode(r.n.Runtime.StopContainer(leaving, c.cid, seconds(3)), codes.DeadlineExceeded)
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Fatalf("it has ended before its time: %v", st)
		}
		if st := c.finish(); st.ExitCode != 137 {
			r.Errorf("it has ended with %d", st.ExitCode)
		}
	})
}
