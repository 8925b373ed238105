package cgroup

import (
	"path/filepath"
	"testing"
)

// TestFilesAreNoGroups has the path of a group lead to a file of the cgroup file system, or through one: what is asked
// of such a group finds none.
func TestFilesAreNoGroups(t *testing.T) {
	g := testGroup(t)
	for _, path := range []string{"cgroup.procs", "cgroup.procs/x", "cgroup.procs/x/y"} {
		none := At(filepath.Join(g.Path(), path))
		if pids, err := none.Pids(); err != nil || pids != nil {
			t.Errorf("%s: processes %v, %v", path, pids, err)
		}
		for what, err := range map[string]error{
			"kill": none.Kill(), "wait": none.WaitEmpty(t.Context()), "remove": none.Remove(),
		} {
			if err != nil {
				t.Errorf("%s: %s: %v", path, what, err)
			}
		}
	}
}

func TestCheckPath(t *testing.T) {
	g := testGroup(t)
	at := "/" + filepath.Base(filepath.Dir(g.Path())) + "/" + filepath.Base(g.Path())
	for _, path := range []string{at, at + "/pod1", "/berth-none", "/berth-none/x/y.z"} {
		if err := CheckPath(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	bad := []string{
		"/cgroup.procs", "/cgroup.procs/x", at + "/cgroup.procs", at + "/x/cgroup.procs",
		"/berth-none/cgroup.procs", "/berth-none/x/cgroup.procs/y", "/..", "/",
	}
	if Unified() != "" {
		bad = append(bad, "/cgroup.events") // which the root lacks
	}
	for _, path := range bad {
		if err := CheckPath(path); err == nil {
			t.Errorf("%s is taken for the path of a group", path)
		}
	}
}
