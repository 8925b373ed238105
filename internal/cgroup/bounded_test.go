package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/test/volume"
)

// TestBounded makes a bounded group, twice, since a process that is born into a group that was once killed may die, and
// has it be removed with what is in it.
func TestBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("berth-bounded-test-%d", os.Getpid())
	name := top + "/unpack"
	t.Cleanup(func() {
		if _, err := Vacate(base, top); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		group, tasks, err := Bounded(base, name, false, Bounds{Memory: 64 << 20, Processes: 10, Weight: 25})
		if err != nil {
			t.Fatal(err)
		}
		if bounds := memoryBounds(t, append(tasks, group)); len(bounds) != 1 || bounds[0] != strconv.Itoa(64<<20) {
			t.Errorf("the bounds of memory are %v", bounds)
		}
		cmd := startIn(t, At(group), "echo up; exec sleep 1000")
		for _, dir := range tasks {
			if err := Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
				t.Fatal(err)
			}
		}
		if free, err := Vacate(base, name); err != nil || free != name {
			t.Fatal(free, err)
		}
		if died := signalOf(t, cmd.Wait()); died != syscall.SIGKILL {
			t.Errorf("the process died of %v", died)
		}
		for _, dir := range append(tasks, group) {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	}
	if free, err := Vacate(base, name); err != nil || free != name {
		t.Error("nothing is there:", free, err)
	}
}

// TestVacateBesideWhatHangs has a process of a group wait for a disk that hangs, so that SIGKILL does not end it. The
// next group has another name, twice, and both names are free when the disk answers.
func TestVacateBesideWhatHangs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	disk := t.TempDir()
	volume.Mounted(t, disk, volume.Ext4, 64)
	top := fmt.Sprintf("berth-vacate-test-%d", os.Getpid())
	t.Cleanup(func() {
		if _, err := Vacate(base, top); err != nil {
			t.Error(err)
		}
	})
	name := top + "/unpack"
	thaw, err := volume.Freeze(disk)
	if err != nil {
		t.Fatal(err)
	}
	thaw = sync.OnceValue(thaw)
	t.Cleanup(func() { _ = thaw() })
	var hung []*exec.Cmd
	for n, want := range []string{name, name + "-2", name + "-3"} {
		free, err := Vacate(base, name)
		if free != want || (err == nil) != (n == 0) || n > 0 && !strings.Contains(err.Error(), "hang in the kernel") {
			t.Errorf("%q is free, wanted %q: %v", free, want, err)
		}
		g, err := Make(base, free)
		if err != nil {
			t.Fatal(err)
		}
		cmd := startIn(t, g, "echo up; : > "+disk+"/file")
		hung = append(hung, cmd)
		for end := time.Now().Add(10 * time.Second); !waitsInTheKernel(cmd.Process.Pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("a process does not wait for the disk")
			}
		}
	}
	if err := thaw(); err != nil {
		t.Error(err)
	}
	for _, cmd := range hung {
		_ = cmd.Wait()
	}
	if free, err := Vacate(base, name); free != name || err != nil {
		t.Errorf("%q is free in the end: %v", free, err)
	}
	if left, _ := filepath.Glob(filepath.Join(base, name+"*")); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// TestVacateThatCannot has no group be removable, since none can be looked for: it ends, and no name is free.
func TestVacateThatCannot(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if free, err := Vacate(loop, "below-a-loop"); free != "" || err == nil {
		t.Errorf("%q is free: %v", free, err)
	}
}

// waitsInTheKernel reports whether a process is in a wait that no signal ends.
func waitsInTheKernel(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Contains(string(stat), ") D ")
}

// TestBoundsHoldWhereTheControllersAre bounds a group on hosts of both kinds. On one of cgroup v2 a hierarchy of v1
// that somebody has mounted beside it, for a VPN or an old systemd, has no bound; on one of v1 a controller that is not
// there is an error.
func TestBoundsHoldWhereTheControllersAre(t *testing.T) {
	inV2 := map[string]string{
		"unified/cgroup.subtree_control": "+memory +pids +cpu", "unified/a/cgroup.subtree_control": "+memory +pids +cpu",
		"unified/a/b/memory.max": "4096", "unified/a/b/pids.max": "7", "unified/a/b/cpu.weight": "25",
	}
	inV1 := map[string]string{"memory.limit_in_bytes": "4096", "pids.max": "7", "cpu.shares": "256"}
	v1 := func(all ...string) map[string]string {
		out := map[string]string{}
		for _, c := range all {
			for file, value := range inV1 {
				if strings.HasPrefix(file, c+".") {
					out["v1/"+c+"/a/b/"+file] = value
				}
			}
		}
		return out
	}
	for name, tt := range map[string]struct {
		mode    Modes
		mounted []string // the controllers of v1 hierarchies
		want    map[string]string
		lacks   string
	}{
		"v2":                            {V2, nil, inV2, ""},
		"v2 and net_cls":                {V2, []string{"net_cls"}, inV2, ""},
		"v2 and name=systemd":           {V2, []string{"name=systemd"}, inV2, ""},
		"v1":                            {V1, []string{"memory", "pids", "cpu", "net_cls"}, v1("memory", "pids", "cpu"), ""},
		"hybrid":                        {Hybrid, []string{"memory", "pids", "cpu"}, v1("memory", "pids", "cpu"), ""},
		"hybrid without memory cgroups": {Hybrid, []string{"pids", "cpu"}, v1("pids", "cpu"), "controller memory"},
		"only a cgroup2 of our own":     {V1, nil, inV2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			top, at := t.TempDir(), map[string]string{}
			for _, c := range tt.mounted {
				at[c] = filepath.Join(top, "v1", c, "a/b")
			}
			for _, all := range []map[string]string{inV2, v1(tt.mounted...)} {
				for file := range all {
					path := filepath.Join(top, file)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
						t.Fatal(err)
					}
				}
			}
			b := Bounds{Memory: 4096, Processes: 7, Weight: 25}
			tasks, err := b.apply(tt.mode, at, filepath.Join(top, "unified"), "a/b", true)
			if tt.lacks == "" && err != nil || tt.lacks != "" && (err == nil || !strings.Contains(err.Error(), tt.lacks)) {
				t.Errorf("error %v, wanted one of %q", err, tt.lacks)
			}
			written := map[string]string{}
			for _, all := range []map[string]string{inV2, v1(tt.mounted...)} {
				for file := range all {
					if text, err := os.ReadFile(filepath.Join(top, file)); err != nil || len(text) > 0 {
						written[file] = string(text)
					}
				}
			}
			if !maps.Equal(written, tt.want) {
				t.Errorf("written is %v, wanted %v", written, tt.want)
			}
			if inV1 := strings.Contains(fmt.Sprint(tt.want), "v1/"); inV1 != (len(tasks) > 0) {
				t.Errorf("processes go into %v, too", tasks)
			}
		})
	}
	if _, err := (Bounds{Processes: 7, Weight: 25}).applyV1(map[string]string{"pids": t.TempDir()}); err == nil ||
		strings.Contains(err.Error(), "memory") {
		t.Errorf("of memory, which is to have no bound, and the processors: %v", err)
	}
}

// memoryBounds are the limits of memory in some groups' directories.
func memoryBounds(t *testing.T, dirs []string) (out []string) {
	t.Helper()
	for _, dir := range dirs {
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			if raw, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				out = append(out, strings.TrimSpace(string(raw)))
			}
		}
	}
	return out
}

// signalOf is the signal that a process died of.
func signalOf(t *testing.T, err error) syscall.Signal {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}
