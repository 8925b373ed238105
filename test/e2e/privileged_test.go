package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// privileged is a privileged container.
var privileged = security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })

// debugged is the pod as a kubelet describes it once it has a privileged ephemeral container: the requests for its
// containers say that the pod is privileged, and the sandbox is the one that was run before.
func (p *pod) debugged() *pod {
	config := proto.Clone(p.config).(*v1.PodSandboxConfig)
	config.Linux.SecurityContext.Privileged = true
	return &pod{p.rig, p.id, config}
}

// TestPrivilegedEphemeralContainer makes privileged containers in a pod that was run without privileges, as kubectl
// debug --profile=sysadmin does. They have what they have in a privileged pod, and the container that they are for
// stays as it is.
func TestPrivilegedEphemeralContainer(t *testing.T) {
	each(t, func(r rig) {
		device := "/dev/berth-test-" + unique(r.T)
		r.ok(unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		r.Cleanup(func() { r.ok(os.Remove(device)) })
		plain, pair := r.pod(), r.pod(func(c *v1.PodSandboxConfig) {
			c.Metadata.Name += "-pair"
			c.Linux.SecurityContext.Privileged = true
		})
		confined := func(p *pod) *ctr {
			c := p.start(busybox("main", "echo up; sleep 7654", seccomp(v1.SecurityProfile_RuntimeDefault, "")))
			c.logged("up")
			return c
		}
		main, _ := confined(plain), confined(pair)
		for _, c := range []struct{ name, script, want string }{
			{"powers", "grep -E 'CapEff|Seccomp:|NoNewPrivs' /proc/self/status", ""},
			{"device", fmt.Sprintf("head -c 3 %s | wc -c", device), "3"},
			{"any-device", "mknod /d c 1 5 && head -c 3 /d | wc -c; ls -R /dev | wc -l | grep -v '^[0-9]$'", ""},
			{"mount", "mount -t tmpfs none /tmp && echo mounted", "mounted"},
			{"sys", "cd /sys/class/net/lo; cat tx_queue_len > tx_queue_len && grep -c ' /sys sysfs rw' /proc/mounts", "1"},
			{"cgroups", "grep ' /sys/fs/cgroup' /proc/mounts | cut -d ' ' -f 2-4 | sort", ""},
			{"confined", "cat /proc/self/attr/current 2>/dev/null || echo not", ""},
		} {
			want := pair.output(busybox(c.name, c.script, privileged))
			if c.want != "" {
				r.wantText(c.name+", in a privileged pod", want, c.want)
			}
			edits := []edit{privileged, seccomp(v1.SecurityProfile_RuntimeDefault, "")} // as a kubelet has it from the pod
			r.wantText(c.name, plain.debugged().output(busybox(c.name, c.script, edits...)), strings.TrimSpace(want))
		}
		debugger := plain.debugged().start(busybox("debugger", "ps; exec sleep 1000", target(main.cid), privileged))
		debugger.logged("sleep 7654")
		script := fmt.Sprintf("test -e %s || echo no device; mount -t tmpfs none /tmp 2>/dev/null || echo no mount; cd "+
			"/sys/class/net/lo; cat tx_queue_len 2>/dev/null > tx_queue_len || echo no sys; "+
			"grep Seccomp: /proc/self/status", device)
		r.wantText("the container that is debugged", main.exec("sh", "-c", script),
			"no device\nno mount\nno sys\nSeccomp:\t2")
	})
}

// TestPrivilegedEphemeralContainerInUserns does the same in a pod with a user namespace. As in every privileged
// container of such a pod, its capabilities count for what is the pod's own, and not for the node.
func TestPrivilegedEphemeralContainerInUserns(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(inUserns)
		for _, c := range []struct{ name, script, want string }{
			{"ids", "tr -s ' ' < /proc/self/uid_map", fmt.Sprintf("0 %d 65536", firstUID)},
			{"own", "mount -t tmpfs none /tmp && echo mounted; ip link add v0 type veth peer name v1 && echo linked",
				"mounted\nlinked"},
			{"node", "mknod /d c 1 5 2>/dev/null || echo no device; date -s 2020-01-01 2>&1 | grep -o permitted; echo 1 " +
				"2>/dev/null > /proc/sys/vm/swappiness || echo no setting", "no device\npermitted\nno setting"},
		} {
			r.wantText(c.name, p.debugged().output(p.as(busybox(c.name, c.script, privileged))), c.want)
		}
	})
}
