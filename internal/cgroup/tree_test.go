package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const hybridMounts = `23 1 0:22 / /sys rw - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
60 23 0:38 / /run/berth/cgroup2 rw,nosuid - cgroup2 berth rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
42 31 0:29 / /mnt/again rw,relatime - cgroup cgroup rw,cpu,cpuacct
`

func TestParseMounts(t *testing.T) {
	got, err := parseMounts(strings.NewReader(hybridMounts))
	if err != nil {
		t.Fatal(err)
	}
	want := "[{/sys/fs/cgroup/cpu,cpuacct 0:29 [cpu cpuacct] false} {/sys/fs/cgroup/systemd 0:37 [name=systemd] false} " +
		"{/sys/fs/cgroup/unified 0:38 [] true}]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v", got)
	}
}

func TestModeIsThatOfTheMounts(t *testing.T) {
	hierarchies, err := mounted()
	if err != nil {
		t.Fatal(err)
	}
	want := V1
	for _, h := range hierarchies {
		switch {
		case h.v2 && h.dir == root:
			want = V2
		case h.v2 && h.dir == unified:
			want = Hybrid
		}
	}
	if Mode() != want {
		t.Errorf("%s, the mounts say %s", Mode(), want)
	}
}

func TestLocate(t *testing.T) {
	at, err := Locate("/berth/pod/ctr")
	if err != nil {
		t.Fatal(err)
	}
	if Mode() == V2 {
		if at.Unified != "/sys/fs/cgroup/berth/pod/ctr" {
			t.Errorf("%+v", at)
		}
	} else if dir := at.V1["memory"]; dir != "/sys/fs/cgroup/memory/berth/pod/ctr" {
		t.Errorf("%+v", at)
	}
	for _, path := range []string{"", "/", "//", "a/b", "/..", "/a/..", "/a/../b"} {
		if _, err := Locate(path); err == nil {
			t.Errorf("took %q", path)
		}
		if err := RemoveTree(path); err == nil {
			t.Errorf("removed %q", path)
		}
	}
}

// TestRemoveTree makes in every hierarchy what a runtime leaves behind: a container's cgroup with processes in it.
func TestRemoveTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top := fmt.Sprintf("/berth-tree-test-%d", os.Getpid())
	t.Cleanup(func() {
		if err := RemoveTree(top); err != nil {
			t.Error(err)
		}
	})
	hierarchies, err := mounted()
	if err != nil {
		t.Fatal(err)
	}
	// it does not end by itself when those are killed first
	sleep := exec.Command("/bin/sh", "-c", "sleep 1000 & sleep 1000 & echo; wait; exec sleep 1000")
	out, err := sleep.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for i, h := range hierarchies {
		for _, name := range []string{"/pod/ctr/exec-1", fmt.Sprintf("/pod/only-%d", i)} {
			if err := os.MkdirAll(filepath.Join(h.dir, top, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if h.v2 || h.dir == "/sys/fs/cgroup/pids" || h.dir == "/sys/fs/cgroup/memory" {
			for _, pid := range append(childrenOf(t, sleep.Process.Pid), sleep.Process.Pid) {
				if err := os.WriteFile(filepath.Join(h.dir, top, "pod/ctr/exec-1/cgroup.procs"), []byte(strconv.Itoa(pid)),
					0); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	names, err := Children(top + "/pod")
	if err != nil || len(names) != len(hierarchies)+1 || names[0] != "ctr" {
		t.Errorf("children %v, %v", names, err)
	}
	done := make(chan error, 1)
	go func() { done <- sleep.Wait() }()
	for range 2 {
		if err := RemoveTree(top + "/pod"); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
	for _, h := range hierarchies {
		if _, err := os.Lstat(filepath.Join(h.dir, top, "pod")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", h.dir, err)
		}
	}
	if names, err := Children(top + "/pod"); err != nil || names != nil {
		t.Errorf("children %v, %v", names, err)
	}
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Skip("this kernel lists no children")
	}
	var pids []int
	for _, field := range strings.Fields(string(data)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, child)
	}
	return pids
}
