package cgroup

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/installed"
)

func TestOptionsOf(t *testing.T) {
	const (
		v1      = "40 31 0:37 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids\n"
		v2      = "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
		favored = "42 1 0:38 / /x\\040y ro - cgroup2 none rw,favordynmods\n"
		none    = "43 1 0:38 / /y rw - cgroup2 none rw\n"
	)
	for mounts, want := range map[string][]string{
		v1 + v2: {"nsdelegate", "memory_recursiveprot"}, favored: {"favordynmods"}, none: {},
	} {
		if got, there := optionsOf(mounts, "0:38"); !there || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", mounts, got, there)
		}
	}
	for _, mounts := range []string{v1, strings.Replace(v2, "0:38", "0:3", 1), "", "0:38 - cgroup2 x\n"} {
		if got, there := optionsOf(mounts, "0:38"); there {
			t.Errorf("%q: %q", mounts, got)
		}
	}
}

// inNamespace has TestFavorDynmods be in a cgroup namespace, where the kernel ignores the options of the hierarchy.
const inNamespace = "BERTH_TEST_CGROUP_NAMESPACE"

// TestFavorDynmods changes how the kernel of its machine works, so it has a machine of its own.
func TestFavorDynmods(t *testing.T) {
	if !installed.InMachine() {
		t.Skip("it changes an option of this machine's cgroups: make test-vm has a machine for that")
	}
	dir, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before, err := optionsAt(dir)
	if err != nil || slices.Contains(before, favorDynmods) {
		t.Fatalf("%q, %v", before, err)
	}
	if os.Getenv(inNamespace) != "" {
		if err := FavorDynmods(dir); err == nil || !strings.Contains(err.Error(), "has ignored the option") {
			t.Errorf("in a cgroup namespace: %v", err)
		}
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestFavorDynmods$")
	child.Env = append(os.Environ(), inNamespace+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP}
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	defer func() {
		if err := reconfigure(dir, before); err != nil {
			t.Error(err)
		}
	}()
	var flags [2]unix.Statfs_t
	took := moves(t, dir)
	_ = unix.Statfs(dir, &flags[0])
	for range 2 {
		if err := FavorDynmods(dir); err != nil {
			t.Fatal(err)
		}
		if favored, err := FavorsDynmods(dir); !favored || err != nil {
			t.Errorf("%v, %v", favored, err)
		}
	}
	_ = unix.Statfs(dir, &flags[1])
	t.Logf("a move took %v, and takes %v", took, moves(t, dir))
	after, err := optionsAt(dir)
	slices.Sort(after)
	if want := slices.Sorted(slices.Values(append(before, favorDynmods))); err != nil || !slices.Equal(after, want) {
		t.Errorf("the options were %q, and are %q, %v", before, after, err)
	}
	if flags[0].Flags != flags[1].Flags {
		t.Errorf("the flags of the mount were %x, and are %x", flags[0].Flags, flags[1].Flags)
	}
}

// TestFavorDynmodsElsewhere has the kernel not know the option, or a process that may not set it.
func TestFavorDynmodsElsewhere(t *testing.T) {
	if err := FavorDynmods(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no cgroup2 hierarchy") {
		t.Errorf("%v", err)
	}
	if Mode() == V1 {
		t.Skip("no cgroup2 hierarchy is mounted here")
	}
	dir, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	options, err := optionsAt(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = reconfigure(dir, append(options, "nosuchoption"))
	if err == nil || !strings.Contains(err.Error(), "the kernel does not know nosuchoption") {
		t.Errorf("%v", err)
	}
	if after, err := optionsAt(dir); err != nil || !slices.Equal(options, after) {
		t.Errorf("the options were %q, and are %q, %v", options, after, err)
	}
}

// moves is the median time of moving a process to another group and back, with pauses as between the starts of
// containers.
func moves(t *testing.T, tracking string) time.Duration {
	t.Helper()
	group, err := Make(tracking, "berth-test-moves")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	pid := []byte(strconv.Itoa(cmd.Process.Pid))
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := bytes.Cut(own, []byte("0::"))
	path, _, _ = bytes.Cut(path, []byte("\n"))
	var took []time.Duration
	for range 10 {
		for _, dir := range []string{group.Path(), filepath.Join(tracking, string(path))} {
			time.Sleep(20 * time.Millisecond)
			began := time.Now()
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return took[len(took)/2]
}
