package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestRemoveCgroupTakesTheWholeTreeEverywhere(t *testing.T) {
	name := fmt.Sprintf("cribench-test-%d", os.Getpid())
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		roots = []string{"/sys/fs/cgroup/cgroup.procs"} // what is below are groups, and some of them other tests'
	}
	var made []string
	for _, root := range roots {
		dir := filepath.Join(filepath.Dir(root), name)
		if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err == nil {
			made = append(made, dir)
		}
	}
	if len(made) == 0 {
		t.Fatal("no cgroup could be made: this test needs root")
	}
	if err := RemoveCgroup("/" + name); err != nil {
		t.Fatal(err)
	}
	for _, dir := range made {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
	if err := RemoveCgroup("/" + name); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

// TestProcessorTimeIsOfTheDaemonAndItsChildren moves a shell, and has a child of it work.
func TestProcessorTimeIsOfTheDaemonAndItsChildren(t *testing.T) {
	pods := fmt.Sprintf("/cribench-test-work-%d", os.Getpid())
	t.Cleanup(func() {
		if err := RemoveCgroup(pods); err != nil {
			t.Error(err)
		}
	})
	// The shell waits for a line, which comes when it was moved.
	shell := exec.Command("sh", "-c", "read go; sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; :")
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	moved := CountProcessorTime(pods, shell.Process.Pid)
	_, _ = in.Write([]byte("\n"))
	if err := errors.Join(moved, shell.Wait()); err != nil {
		t.Fatal(err)
	}
	seconds, err := ProcessorTime(pods)
	if err != nil {
		t.Fatal(err)
	}
	if own := shell.ProcessState.UserTime().Seconds(); seconds < own/2 || seconds == 0 {
		t.Errorf("counted %v s of a child that took %v s", seconds, own)
	}
}
