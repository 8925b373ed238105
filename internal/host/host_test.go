package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Skipf("%s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// TestProbe compares with what the machine's own tools say.
func TestProbe(t *testing.T) {
	f, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	if want := output(t, "uname", "-r"); f.Kernel != want {
		t.Errorf("kernel %q, uname says %q", f.Kernel, want)
	}
	if want := output(t, "uname", "-n"); f.Hostname != want {
		t.Errorf("host name %q, uname says %q", f.Hostname, want)
	}
	if want := output(t, "cat", "/proc/sys/kernel/random/boot_id"); f.BootID != want || len(want) != 36 {
		t.Errorf("boot id %q, the kernel says %q", f.BootID, want)
	}
	wantMode := map[bool]CgroupMode{true: CgroupV2}[output(t, "stat", "-f", "-c", "%T", "/sys/fs/cgroup") == "cgroup2fs"]
	if wantMode == "" {
		wantMode = CgroupV1
		if out, err := exec.Command("stat", "-f", "-c", "%T", "/sys/fs/cgroup/unified").Output(); err == nil &&
			strings.TrimSpace(string(out)) == "cgroup2fs" {
			wantMode = CgroupHybrid
		}
	}
	if f.Cgroup != wantMode {
		t.Errorf("cgroups %s, stat says %s", f.Cgroup, wantMode)
	}
	if !slices.Contains(f.Controllers, "memory") || !slices.Contains(f.Controllers, "pids") ||
		slices.Contains(f.Controllers, "rw") {
		t.Errorf("controllers %v", f.Controllers)
	}
	if len(f.HugepageSizes) > 0 && !slices.Contains(f.Controllers, "hugetlb") {
		t.Errorf("huge pages %v without their controller", f.HugepageSizes)
	}
	if !f.Overlay {
		t.Error("no overlay file system")
	}
	if want := output(t, "sh", "-c", "grep -q '^Seccomp:' /proc/self/status && echo y"); f.Seccomp != (want == "y") {
		t.Errorf("seccomp %v", f.Seccomp)
	}
	if !slices.Contains(f.BoundingCaps, "CAP_CHOWN") ||
		f.HasResource != slices.Contains(f.BoundingCaps, "CAP_SYS_RESOURCE") {
		t.Errorf("capabilities %v, resource %v", f.BoundingCaps, f.HasResource)
	}
}

func TestRlimits(t *testing.T) {
	f, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Rlimits, func(l specs.POSIXRlimit) bool { return l.Type == "RLIMIT_NOFILE" })
	if i < 0 || len(f.Rlimits) != 16 {
		t.Fatalf("limits %v", f.Rlimits)
	}
	var want unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &want); err != nil {
		t.Fatal(err)
	}
	if f.Rlimits[i].Hard != want.Max {
		t.Errorf("open files: %v, the kernel says %v", f.Rlimits[i], want)
	}
}

// TestCapabilities wants numbers and names as the kernel has them.
func TestCapabilities(t *testing.T) {
	for name, number := range map[string]int{
		"CHOWN": unix.CAP_CHOWN, "SETPCAP": unix.CAP_SETPCAP, "NET_RAW": unix.CAP_NET_RAW, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
		"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "SETFCAP": unix.CAP_SETFCAP, "AUDIT_READ": unix.CAP_AUDIT_READ,
		"CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
	} {
		if got := slices.Index(capabilities, name); got != number {
			t.Errorf("CAP_%s is %d, wanted %d", name, got, number)
		}
	}
	if len(capabilities) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d capabilities, the kernel's headers have %d", len(capabilities), unix.CAP_LAST_CAP+1)
	}
}

// TestControllers wants those that a runtime can limit with: on a hybrid host not what the cgroup2 has over.
func TestControllers(t *testing.T) {
	unified := t.TempDir()
	if err := os.WriteFile(unified+"/cgroup.controllers", []byte("hugetlb memory\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	v1 := cgroupMount{path: "/v1", options: []string{"rw", "cpu", "cpuacct"}}
	v2 := cgroupMount{path: unified, v2: true, options: []string{"rw"}}
	for mode, want := range map[CgroupMode]string{CgroupV1: "cpu cpuacct", CgroupHybrid: "cpu cpuacct",
		CgroupV2: "hugetlb memory"} {
		if got := strings.Join(controllers(mode, []cgroupMount{v1, v2}), " "); got != want {
			t.Errorf("%s: %s, want %s", mode, got, want)
		}
	}
}

func TestHugepageSizes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"hugepages-1048576kB", "hugepages-2048kB", "hugepages-64kB", "hugepages-16777216kB"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := hugepageSizes(dir)
	if want := []string{"64KB", "2MB", "1GB", "16GB"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, wanted %v", got, err, want)
	}
}

func TestProfileNames(t *testing.T) {
	got := profileNames("berth-default (enforce)\n/usr/bin/man (complain)\nodd (name) (enforce)")
	if want := []string{"berth-default", "/usr/bin/man", "odd (name)"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestDelegated compares with what the kernel says of the hierarchy's mounts.
func TestDelegated(t *testing.T) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ /sys/fs/cgroup\S* .* - cgroup2 \S+ \S*\bnsdelegate\b`).Match(text)
	if got, err := Delegated(); got != want || err != nil {
		t.Errorf("%v, %v; wanted %v", got, err, want)
	}
}
