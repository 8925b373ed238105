package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
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
		if err := RemoveBounded(base, top); err != nil {
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
		if err := RemoveBounded(base, name); err != nil {
			t.Fatal(err)
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
	if err := RemoveBounded(base, name); err != nil {
		t.Error("nothing is there:", err)
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
