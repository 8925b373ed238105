package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// podOf runs a pod with a handler, and removes it when the test is over.
func (r rig) podOf(handler string, edits ...func(*v1.PodSandboxConfig)) *pod {
	r.Helper()
	config := r.n.Pod(unique(r.T), edits...)
	id, err := r.n.Runtime.RunPodSandbox(ctx(), config, handler)
	r.ok(err)
	p := &pod{r, id, config}
	r.Cleanup(p.remove)
	return p
}

// info is what a verbose status tells of the pod.
func (p *pod) info() (info struct{ PID int }) {
	p.Helper()
	resp, err := p.n.Runtime.PodSandboxStatus(ctx(), p.id, true)
	p.ok(err)
	p.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	return info
}

// spec is what the container's runtime was given.
func (c *ctr) spec() (info struct{ RuntimeSpec specs.Spec }) {
	c.Helper()
	resp, err := c.n.Runtime.ContainerStatus(ctx(), c.cid, true)
	c.ok(err)
	c.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	return info
}

// TestHandlers has what a handler may say reach its pods and containers.
func TestHandlers(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			base := t.TempDir() + "/base.json"
			if err := os.WriteFile(base,
				[]byte(
					`{"ociVersion":"1.0.2","process":{"env":["FROM=base"],"rlimits":[{"type":"RLIMIT_NOFILE","soft":77,"hard":88}]},
				"mounts":[{"destination":"/mnt/base","type":"tmpfs","source":"tmpfs","options":["size=64k"]}],
				"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`), 0o644); err != nil {
				t.Fatal(err)
			}
			hardened := t.TempDir() + "/hardened.json"
			if err := os.WriteFile(hardened, []byte(`{"process":{"capabilities":{"bounding":["CAP_KILL","CAP_CHOWN"]}},
				"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"},"sysctl":{"net.ipv4.ip_default_ttl":"33"}}}`), 0o644); err != nil {
				t.Fatal(err)
			}
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(`
[runtimes.infra]
path = %[1]q
driver = "oci-infra"
[runtimes.pid]
path = %[1]q
init = true
args = ["--debug"]
[runtimes.based]
path = %[1]q
base_spec = %[2]q
pids_limit = 99
[runtimes.hardened]
path = %[1]q
base_spec = %[3]q
`, program, base, hardened)})
			r.pull("busybox:latest")
			r.sub("infra", rig.infra)
			r.sub("a pid", rig.initOfItsOwn)
			r.sub("base spec", func(r rig) {
				p := r.podOf("based")
				r.wantText("limits, variables and mounts of the base", p.output(busybox("a", "ulimit -Sn; echo $FROM; grep -c "+
					"/mnt/base /proc/mounts")), "77\nbase\n1")
				reads := "head -c1 /dev/kmsg >/dev/null && echo read"
				p = r.podOf("based", func(c *v1.PodSandboxConfig) {
					c.Metadata.Name, c.Linux.SecurityContext.Privileged = "privileged", true
				})
				r.wantText("a device of the request", p.output(busybox("given", reads, caps([]string{"SYSLOG"}, nil),
					func(c *v1.ContainerConfig) {
						c.Devices = append(c.Devices, &v1.Device{HostPath: "/dev/kmsg", ContainerPath: "/dev/kmsg", Permissions: "r"})
					})), "read")
				r.wantText("a privileged container", p.output(busybox("privileged", reads,
					security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true }))), "read")
				c := p.start(busybox("b", "sleep 1000"))
				sp := c.spec().RuntimeSpec
				if sp.Linux.Resources.Pids == nil || *sp.Linux.Resources.Pids.Limit != 99 {
					r.Errorf("processes: %+v", sp.Linux.Resources.Pids)
				}
			})
			r.sub("what a base spec says is usual", func(r rig) {
				const reads = "grep -E '^(CapBnd|Seccomp):' /proc/self/status; cat /proc/sys/net/ipv4/ip_default_ttl"
				p := r.podOf("hardened")
				r.wantText("where nothing is asked for", p.output(busybox("a", reads)),
					"CapBnd:\t0000000000000021\nSeccomp:\t2\n33")
				r.wantText("with NET_RAW", p.output(busybox("b", reads, caps([]string{"NET_RAW"}, []string{"CHOWN"}))),
					"CapBnd:\t0000000000002020\nSeccomp:\t2\n33")
				p = r.podOf("hardened", func(c *v1.PodSandboxConfig) {
					c.Metadata.Name, c.Linux.Sysctls = "own", map[string]string{"net/ipv4/ip_default_ttl": "44"}
				})
				r.wantText("with a sysctl of the pod's", p.output(busybox("a", reads)),
					"CapBnd:\t0000000000000021\nSeccomp:\t2\n44")
			})
			r.sub("unknown", func(r rig) {
				_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod(unique(r.T)), "nonesuch")
				r.wantCode(err, codes.NotFound, "nonesuch", "[runtimes.nonesuch]")
			})
		})
	}
}

// infra wants a container to stand for the pod, and the pod to last as long as that.
func (r rig) infra() {
	p := r.podOf("infra")
	pid := p.info().PID
	if pid == 0 {
		r.Fatal("the pod has no pid")
	}
	c := p.start(webapp("main", "count 5ms 1000000"))
	c.logged("tick 5\n")
	if got, want := namespaceOf(r, c.pid("webapp"), "net"), namespaceOf(r, pid, "net"); got != want {
		r.Errorf("network namespaces: %s and %s", got, want)
	}
	if got, not := namespaceOf(r, c.pid("webapp"), "pid"), namespaceOf(r, pid, "pid"); got == not {
		r.Error("a container with a PID namespace of its own shares that of the pod")
	}
	for key, want := range map[string]string{
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri-o.ContainerType": "container",
		"io.kubernetes.cri.sandbox-id": p.id, "io.kubernetes.cri-o.SandboxID": p.id,
	} {
		if got := c.spec().RuntimeSpec.Annotations[key]; got != want {
			r.Errorf("annotation %s is %q", key, got)
		}
	}
	r.ok(r.n.Restart())
	if got := p.info().PID; got != pid || p.status().State != v1.PodSandboxState_SANDBOX_READY {
		r.Errorf("after the daemon was killed the pod is %v, its pid %d was %d", p.status().State, got, pid)
	}
	r.ok(r.n.Kill9())
	r.ok(syscall.Kill(pid, syscall.SIGKILL))
	r.eventually("it has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	r.ok(r.n.Start())
	r.eventually("a pod whose own container ended without a daemon is not ready", func() bool {
		return p.status().State == v1.PodSandboxState_SANDBOX_NOTREADY
	})
}

// initOfItsOwn wants a pid for a pod whose containers share no PID namespace, and the pod to end with it.
func (r rig) initOfItsOwn() {
	p := r.podOf("pid")
	pid := p.info().PID
	if maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err != nil ||
		!regexp.MustCompile(`AnonHugePages: +0 kB`).Match(maps) {
		r.Errorf("the init has huge pages: %v\n%s", err, maps)
	}
	c := p.start(busybox("main", "sleep 1000"))
	r.eventually("the container's own pid is 1", func() bool {
		return c.exec("sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline") == "sleep 1000 "
	})
	r.ok(syscall.Kill(pid, syscall.SIGKILL))
	r.eventually("the pod is not ready", func() bool { return p.status().State == v1.PodSandboxState_SANDBOX_NOTREADY })
}

func namespaceOf(r rig, pid int, kind string) string {
	r.Helper()
	link, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + kind)
	r.ok(err)
	return strings.TrimSpace(link)
}

// TestDaemonWithABadBaseSpec takes the base spec of a handler away under a pod, and starts the daemon: it serves, makes
// pods of other handlers, and can stop that pod, but makes nothing new of the handler until it has the file again.
func TestDaemonWithABadBaseSpec(t *testing.T) {
	runtime := runtimes()[0]
	program, err := exec.LookPath(runtime)
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir() + "/base.json"
	const text = `{"process":{"env":["FROM=base"]}}`
	if err := os.WriteFile(base, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(
		"\n[runtimes.based]\npath = %q\nbase_spec = %q\n", program, base)})
	r.pull("busybox:latest")
	p := r.podOf("based")
	c := p.start(busybox("main", "sleep 1000"))
	r.ok(os.Remove(base))
	r.ok(r.n.Restart())
	refused := func(err error) { r.wantCode(err, codes.FailedPrecondition, "runtimes.based.base_spec", base) }
	other := busybox("other", "sleep 1000")
	_, err = r.n.Runtime.CreateContainer(ctx(), p.id, other, p.config)
	refused(err)
	_, err = r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod(unique(r.T)+"-new"), "based")
	refused(err)
	r.pod().start(busybox("main", "sleep 1000"))
	r.wantText("an exec in the container", c.exec("sh", "-c", "echo $FROM"), "base")
	r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
	r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
	if out, err := r.reload(); err == nil || !strings.Contains(out, base) {
		r.Errorf("a reload without the file: %v: %s", err, out)
	}
	r.ok(os.WriteFile(base, []byte(text), 0o644))
	if out, err := r.reload(); err != nil {
		r.Errorf("a reload with the file: %v: %s", err, out)
	}
	r.wantText("a container afterwards", p.output(busybox("again", "echo $FROM")), "base")
}
