package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

func security(f func(*v1.LinuxContainerSecurityContext)) edit {
	return func(c *v1.ContainerConfig) { f(c.Linux.SecurityContext) }
}

func caps(add, drop []string) edit {
	return security(func(s *v1.LinuxContainerSecurityContext) {
		s.Capabilities = &v1.Capability{AddCapabilities: add, DropCapabilities: drop}
	})
}

// The numbers of a few capabilities, by capabilities(7).
const (
	capChown    = 0
	capKill     = 5
	capNetAdmin = 12
	capNetRaw   = 13
	capSysAdmin = 21
)

func TestCapabilities(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		for _, c := range []struct {
			name string
			edit edit
			has  []int
			not  []int
		}{
			{"default", caps(nil, nil), []int{capChown, capKill}, []int{capNetAdmin, capSysAdmin}},
			{"add", caps([]string{"NET_ADMIN"}, nil), []int{capChown, capNetAdmin}, []int{capSysAdmin}},
			{"add-prefixed", caps([]string{"CAP_NET_ADMIN"}, nil), []int{capNetAdmin}, nil},
			{"drop", caps(nil, []string{"KILL"}), []int{capChown}, []int{capKill}},
			{"drop-all", caps(nil, []string{"ALL"}), nil, []int{capChown, capKill, capNetRaw}},
			{"drop-all-add", caps([]string{"CHOWN"}, []string{"ALL"}), []int{capChown}, []int{capKill}},
			{"add-all", caps([]string{"ALL"}, nil), []int{capChown, capNetAdmin, capSysAdmin}, nil},
			{"add-all-drop", caps([]string{"ALL"}, []string{"SYS_ADMIN"}), []int{capNetAdmin}, []int{capSysAdmin}},
			{"privileged", security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true }),
				[]int{capNetAdmin, capSysAdmin}, nil},
		} {
			out := p.output(busybox(c.name, "grep CapEff /proc/self/status", c.edit))
			mask, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(out, "CapEff:")), 16, 64)
			r.ok(err)
			for _, n := range c.has {
				if mask&(1<<n) == 0 {
					r.Errorf("%s: capability %d is missing in %x", c.name, n, mask)
				}
			}
			for _, n := range c.not {
				if mask&(1<<n) != 0 {
					r.Errorf("%s: capability %d is there in %x", c.name, n, mask)
				}
			}
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", caps([]string{"NONESUCH"}, nil)), p.config)
		r.wantCode(err, codes.InvalidArgument, "NONESUCH")
	})
}

func seccomp(kind v1.SecurityProfile_ProfileType, path string) edit {
	return security(func(s *v1.LinuxContainerSecurityContext) {
		s.Seccomp = &v1.SecurityProfile{ProfileType: kind, LocalhostRef: path}
	})
}

const noMkdir = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`

func TestSecurity(t *testing.T) {
	each(t, func(r rig) {
		profile := filepath.Join(r.TempDir(), "no-mkdir.json")
		r.ok(os.WriteFile(profile, []byte(noMkdir), 0o644))
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		privileged := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"seccomp-default", "grep Seccomp: /proc/self/status | tr -d '\\t'; unshare -U true 2>/dev/null || echo refused",
				"Seccomp:2\nrefused",
				seccomp(v1.SecurityProfile_RuntimeDefault, "")},
			{"seccomp-unconfined", "grep Seccomp: /proc/self/status | tr -d '\\t'", "Seccomp:0",
				seccomp(v1.SecurityProfile_Unconfined, "")},
			{"seccomp-localhost", "mkdir /tmp/x 2>/dev/null || echo refused", "refused",
				seccomp(v1.SecurityProfile_Localhost, profile)},
			{"no-new-privs", "grep NoNewPrivs /proc/self/status | tr -d '\\t'", "NoNewPrivs:1",
				security(func(s *v1.LinuxContainerSecurityContext) { s.NoNewPrivs = true })},
			{"new-privs", "grep NoNewPrivs /proc/self/status | tr -d '\\t'", "NoNewPrivs:0", func(*v1.ContainerConfig) {}},
			{"read-only", "touch /x 2>/dev/null || echo refused; touch /dev/shm/x && echo shm", "refused\nshm",
				security(func(s *v1.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true })},
			{"masked", "cat /etc/passwd; ls /home; echo end", "end", security(func(s *v1.LinuxContainerSecurityContext) {
				s.MaskedPaths = []string{"/etc/passwd", "/home", "/no/such/path"}
			})},
			{"read-only-paths", "touch /tmp/x 2>/dev/null || echo refused; touch /root/x && echo done", "refused\ndone",
				security(func(s *v1.LinuxContainerSecurityContext) { s.ReadonlyPaths = []string{"/tmp", "/no/such/path"} })},
			{"oom-score", "cat /proc/self/oom_score_adj", "500", func(c *v1.ContainerConfig) {
				c.Linux.Resources.OomScoreAdj = 500
			}},
			{"sys-read-only", "touch /sys/x 2>/dev/null; grep -c ' /sys sysfs ro' /proc/mounts", "1",
				func(*v1.ContainerConfig) {}},
			{"privileged-sys", "grep -c ' /sys sysfs rw' /proc/mounts", "1", privileged},
			{"privileged-mounts", "mount -t tmpfs none /tmp && echo mounted", "mounted", privileged},
			{"privileged-seccomp", "grep Seccomp: /proc/self/status | tr -d '\\t'", "Seccomp:0", privileged},
			{"privileged-devices", "test -c /dev/kmsg && echo there", "there", privileged},
			{"no-host-devices", "test -c /dev/kmsg || echo absent", "absent", func(*v1.ContainerConfig) {}},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script, c.edit)), c.want)
		}
	})
}

func TestBadSeccomp(t *testing.T) {
	each(t, func(r rig) {
		p, dir := r.pod(), r.TempDir()
		for name, text := range map[string]string{"torn.json": `{"defaultAction":`,
			"odd.json": `{"defaultAction":"SCMP_ACT_NONSENSE"}`} {
			path := filepath.Join(dir, name)
			r.ok(os.WriteFile(path, []byte(text), 0o644))
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
				busybox("bad", "true", seccomp(v1.SecurityProfile_Localhost, path)), p.config)
			r.wantCode(err, codes.InvalidArgument, name)
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
			busybox("bad", "true", seccomp(v1.SecurityProfile_Localhost, dir+"/absent.json")), p.config)
		r.wantCode(err, codes.InvalidArgument, "absent.json")
		p.wantNoContainer("bad")
	})
}

// TestPrivilegedSeesNewDevices gives a privileged container a device that appeared after the daemon's start, as a disk
// that is attached to the node does, and none that is gone.
func TestPrivilegedSeesNewDevices(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		privileged := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
		path := "/dev/berth-test-" + unique(r.T)
		r.ok(unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		defer os.Remove(path)
		out := p.output(busybox("new", fmt.Sprintf("head -c 3 %s | wc -c", path), privileged))
		r.wantText("bytes read from the new device", out, "3")
		r.ok(os.Remove(path))
		out = p.output(busybox("gone", fmt.Sprintf("test -e %s || echo gone", path), privileged))
		r.wantText("a device that was removed", out, "gone")
	})
}

func TestPrivilegedNeedsAPrivilegedPod(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		config := busybox("main", "true", security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true }))
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
		r.wantCode(err, codes.InvalidArgument, "main", "privileged pod")
	})
}

// controlFile reads a control file of a container's cgroup: of v1 by controller and name, of v2 by its own name.
func (c *ctr) controlFile(controller, name, v2 string) string {
	c.Helper()
	patterns := []string{
		fmt.Sprintf("/sys/fs/cgroup/%s/%s/*/%s/%s", controller, c.n.Instance, c.cid, name),
		fmt.Sprintf("/sys/fs/cgroup/%s/*/%s/%s", c.n.Instance, c.cid, v2),
		fmt.Sprintf("/sys/fs/cgroup/berth.slice/%s.slice/*/*/%s/%s", c.n.Instance, node.GroupsOf(c.n).Container(c.cid), v2),
	}
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) == 1 {
			data, err := os.ReadFile(found[0])
			c.ok(err)
			return strings.TrimSpace(string(data))
		}
	}
	c.Fatalf("no control file %s or %s of container %s", name, v2, c.cid)
	return ""
}

func TestResources(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 100", func(c *v1.ContainerConfig) {
			c.Linux.Resources = &v1.LinuxContainerResources{
				CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, CpusetCpus: "0", MemoryLimitInBytes: 64 << 20, OomScoreAdj: 7,
			}
		}))
		for _, f := range []struct{ controller, name, v1, v2name, v2 string }{
			{"memory", "memory.limit_in_bytes", "67108864", "memory.max", "67108864"},
			{"cpu", "cpu.shares", "512", "cpu.weight", "20"},
			{"cpu", "cpu.cfs_quota_us", "50000", "cpu.max", "50000 100000"},
			{"cpuset", "cpuset.cpus", "0", "cpuset.cpus", "0"},
		} {
			if got := c.controlFile(f.controller, f.name, f.v2name); got != f.v1 && got != f.v2 {
				r.Errorf("%s is %q, wanted %s", f.name, got, f.v1)
			}
		}
		got := c.status().GetResources().GetLinux()
		if got.GetMemoryLimitInBytes() != 64<<20 || got.GetCpuShares() != 512 || got.GetCpuQuota() != 50000 ||
			got.GetCpusetCpus() != "0" {
			r.Errorf("the status says %v", got)
		}
	})
}

func TestDevices(t *testing.T) {
	device := func(host, inside, permissions string) edit {
		return func(c *v1.ContainerConfig) {
			c.Devices = append(c.Devices, &v1.Device{HostPath: host, ContainerPath: inside, Permissions: permissions})
		}
	}
	each(t, func(r rig) {
		p := r.pod()
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"standard", "for d in null zero full random urandom tty ptmx; do test -e /dev/$d || echo no $d; done", "",
				func(*v1.ContainerConfig) {}},
			{"given", "dd if=/dev/bt0 bs=4 count=1 2>/dev/null | od -An -tx1 | tr -d ' '", "00000000",
				device("/dev/zero", "/dev/bt0", "rwm")},
			{"kmsg-read", "test -c /dev/bt1 && head -c1 /dev/bt1 >/dev/null && echo read; echo x 2>/dev/null >/dev/bt1 || " +
				"echo no-write", "read\nno-write",
				both(device("/dev/kmsg", "/dev/bt1", "r"), caps([]string{"SYSLOG"}, nil))},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script, c.edit)), c.want)
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", device("/dev/nonesuch", "/dev/x", "rwm")),
			p.config)
		if err == nil || !strings.Contains(err.Error(), "/dev/nonesuch") {
			r.Errorf("a missing device gave %v", err)
		}
	})
}
