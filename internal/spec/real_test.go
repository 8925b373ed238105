package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host"
	"berth/internal/rootfs"
	"berth/internal/spec/device"
)

// TestRuntimesAccept runs specs for real, with every runtime that is installed, and looks at them from inside.
func TestRuntimesAccept(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs a static busybox")
	}
	ran := 0
	for _, runtime := range []string{"runc", "crun"} {
		if _, err := exec.LookPath(runtime); err == nil {
			ran++
			t.Run(runtime, func(t *testing.T) { acceptAll(t, runtime, busybox) })
		}
	}
	if ran == 0 {
		t.Skip("needs runc or crun")
	}
}

func acceptAll(t *testing.T, runtime, busybox string) {
	t.Run("init of a pod", func(t *testing.T) { initRuns(t, runtime, busybox) })
	for _, c := range realCases() {
		t.Run(c.name, func(t *testing.T) {
			in := realInput(t, busybox, c.script)
			if c.change != nil {
				c.change(t, &in)
			}
			s, _, err := Build(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if got := runOnce(t, runtime, s); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

type realCase struct {
	name, script, want string
	change             func(*testing.T, *Input)
}

func security(in *Input) *runtimeapi.LinuxContainerSecurityContext {
	return in.Container.Linux.SecurityContext
}

func realCases() []realCase {
	return []realCase{
		{"plain", `grep -c . /proc/self/mountinfo >/dev/null && id -u && echo $HOME $PATH && touch /written && echo ok`, "ok",
			nil},
		{"user", `id; pwd`, "uid=1000 gid=1000 groups=7,1000\n/srv/made", func(t *testing.T, in *Input) {
			in.User = User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 7}}
			in.Container.WorkingDir = "/srv/made"
		}},
		{"no capability and a filter", `grep -E "CapBnd|NoNewPrivs|Seccomp:" /proc/self/status | tr -d "\t\n"`,
			"CapBnd:0000000000000400NoNewPrivs:1Seccomp:2", func(t *testing.T, in *Input) {
				security(in).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"},
					AddCapabilities: []string{"NET_BIND_SERVICE"}}
				security(in).NoNewPrivs = true
				security(in).Seccomp = &runtimeapi.SecurityProfile{}
			}},
		{"local filter", `mkdir /x 2>&1; echo next`, "Operation not permitted\nnext", func(t *testing.T, in *Input) {
			security(in).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost,
				LocalhostRef: "/p"}
			var err error
			if in.Seccomp, err = ParseSeccomp(
				[]byte(
					`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`)); err != nil {
				t.Fatal(err)
			}
		}},
		{
			"privileged",
			`grep CapEff /proc/self/status; test -e /dev/loop-control -o -e /dev/kmsg && echo devices; mount -o remount,rw /sys && echo rw`,
			"devices\nrw", func(t *testing.T, in *Input) {
				security(in).Privileged = true
				in.Pod.Linux = &runtimeapi.LinuxPodSandboxConfig{
					SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Privileged: true}}
			}},
		{"read-only", `touch /x 2>&1; cat /masked; echo x 2>&1 >/proc/sys/kernel/domainname; head -c1 /proc/kcore | wc -c`,
			"Read-only file system\n", func(t *testing.T, in *Input) {
				security(in).ReadonlyRootfs = true
				security(in).MaskedPaths, security(in).ReadonlyPaths = DefaultMaskedPaths(), DefaultReadonlyPaths()
			}},
		{"mounts", `cat /etc/hosts; touch /rro/sub/x 2>&1; touch /data/y && echo writable`,
			"hosts of the pod\ntouch: /rro/sub/x: Read-only file system\nwritable", mountCase},
		{"limits", `cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max /proc/self/oom_score_adj`,
			"67108864\n20\n500", func(t *testing.T, in *Input) {
				if in.Host.CgroupV2 {
					t.Skip("reads cgroup v1 files")
				}
				in.Container.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 100,
					CpuQuota: 50000, CpuPeriod: 100000, OomScoreAdj: 500, Unified: map[string]string{"pids.max": "20"}}
			}},
		{"device", `ls -l /dev/given | cut -c1; echo x >/dev/given && echo opened`, "c\nopened",
			func(t *testing.T, in *Input) {
				in.Container.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/given", Permissions: "rw"}}
			}},
	}
}

func mountCase(t *testing.T, in *Input) {
	dir := t.TempDir()
	for _, d := range []string{"a/sub", "b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sub := filepath.Join(dir, "a/sub")
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sub, 0); err != nil {
			t.Errorf("unmount %s: %v", sub, err)
		}
	})
	in.Paths.Hosts = filepath.Join(dir, "hosts")
	if err := os.WriteFile(in.Paths.Hosts, []byte("hosts of the pod\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	staged := filepath.Join(dir, "staged")
	if err := rootfs.Stage(t.Context(), filepath.Join(dir, "a"), staged, rootfs.Staging{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rootfs.Unmount(staged); err != nil {
			t.Error(err)
		}
	})
	in.Mounts = []ResolvedMount{
		{Mount: &runtimeapi.Mount{ContainerPath: "/rro", HostPath: "a", Readonly: true, RecursiveReadOnly: true},
			Source: staged, Staged: true},
		{Mount: &runtimeapi.Mount{ContainerPath: "/data", HostPath: "b"}, Source: filepath.Join(dir, "b")},
	}
}

// realInput is a container of this machine that runs a shell script from a root of busybox alone.
func realInput(t *testing.T, busybox, script string) Input {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/bin/busybox", data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("chroot", root, "/bin/busybox", "--install", "-s", "/bin").Run(); err != nil {
		t.Fatalf("install busybox: %v", err)
	}
	_, err = os.Stat("/sys/fs/cgroup/cgroup.controllers")
	own := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}
	return Input{
		Pod: &runtimeapi.PodSandboxConfig{}, PodID: testPodID, ContainerID: "c",
		Container: &runtimeapi.ContainerConfig{Command: []string{"/bin/sh", "-c", script},
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: own}},
		Image: imagespec.ImageConfig{},
		Host: Host{KernelVersion: kernel(t), CgroupV2: err == nil, Seccomp: true, DefaultSeccomp: host.DefaultSeccomp,
			BoundingCaps: ownCaps(t)},
		Paths:      Paths{Rootfs: root, CgroupsPath: "/berth-spec-test/" + filepath.Base(filepath.Dir(root))},
		StatDevice: device.List,
	}
}

func kernel(t *testing.T) string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(u.Release[:])
}

func ownCaps(t *testing.T) []string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "CapBnd:\t")
	var mask uint64
	if _, err := fmt.Sscanf(rest, "%x", &mask); err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, c := range knownCaps {
		if mask>>i&1 == 1 {
			out = append(out, c)
		}
	}
	return out
}

// runOnce runs a spec to its end and returns what it printed.
func runOnce(t *testing.T, runtime string, s *specs.Spec) string {
	bundle, id := writeBundle(t, s)
	out, err := ociRuntime(runtime, "--root", t.TempDir(), "run", "--bundle", bundle, id).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", runtime, err, out)
	}
	return string(out)
}

func writeBundle(t *testing.T, s *specs.Spec) (bundle, id string) {
	bundle = t.TempDir()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bundle+"/config.json", data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroups(t) })
	return bundle, fmt.Sprintf("berth-spec-%d-%s", os.Getpid(), filepath.Base(s.Linux.CgroupsPath))
}

// ociRuntime is a call of a runtime. On a hybrid cgroup host crun needs the empty cgroup2 out of its sight, which a
// private mount namespace gives.
func ociRuntime(runtime string, args ...string) *exec.Cmd {
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err != nil || runtime != "crun" {
		return exec.Command(runtime, args...)
	}
	private := `mount --make-rprivate / && umount /sys/fs/cgroup/unified && exec "$@"`
	return exec.Command("unshare", append([]string{"-m", "sh", "-c", private, "sh", runtime}, args...)...)
}

// initRuns starts the pod's init from an empty root, with a busybox in place of the monitor's binary, and looks at it.
func initRuns(t *testing.T, runtime, busybox string) {
	in := realInput(t, busybox, "")
	empty := t.TempDir()
	if err := os.Chmod(filepath.Dir(empty), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := BuildInit(InitInput{Pod: in.Pod, PodID: testPodID, Host: in.Host, Binary: busybox,
		Paths: Paths{Rootfs: empty, CgroupsPath: in.Paths.CgroupsPath}})
	if err != nil {
		t.Fatal(err)
	}
	bundle, id := writeBundle(t, s)
	state, pidFile := t.TempDir(), filepath.Join(bundle, "pid")
	create := ociRuntime(runtime, "--root", state, "create", "--bundle", bundle, "--pid-file", pidFile, id)
	if err := create.Run(); err != nil {
		t.Fatalf("create: %v", err)
	}
	defer func() {
		if out, err := ociRuntime(runtime, "--root", state, "delete", "--force", id).CombinedOutput(); err != nil {
			t.Errorf("delete: %v %s", err, out)
		}
	}()
	if out, err := ociRuntime(runtime, "--root", state, "start", id).CombinedOutput(); err != nil {
		t.Fatalf("start: %v %s", err, out)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{"Uid:\t65535\t65535", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1",
		"Seccomp:\t2", "\nNSpid:\t" + string(pid) + "\t1\n"}
	// The runtime's start returns when it has told the waiting process to go on, which may be before that has its filter
	// and is the init: until then what is missing may still come.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		status, err := os.ReadFile("/proc/" + string(pid) + "/status")
		if err != nil {
			t.Fatalf("the init is gone: %v", err)
		}
		missing := slices.DeleteFunc(slices.Clone(wants), func(want string) bool {
			return strings.Contains(string(status), want)
		})
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %q in its status:\n%s", missing, status)
		}
	}
}

// removeGroups removes the parent cgroup, which runtimes leave behind. What was in it may be a moment from its end.
func removeGroups(t *testing.T) {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/berth-spec-test")
	for _, d := range append(dirs, "/sys/fs/cgroup/berth-spec-test") {
		err := os.Remove(d)
		for deadline := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) &&
			time.Now().Before(deadline); err = os.Remove(d) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil && !os.IsNotExist(err) {
			t.Errorf("remove cgroup: %v", err)
		}
	}
}
