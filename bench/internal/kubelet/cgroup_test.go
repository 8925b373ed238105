package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
