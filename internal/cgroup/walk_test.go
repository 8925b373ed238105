package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nest makes groups in each other, deeper than a path reaches, and a process in the deepest, which ends with the test.
func nest(t *testing.T, g *Group, depth int) (pid int) {
	t.Helper()
	name := strings.Repeat("d", 200)
	at, err := unix.Open(g.Path(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		err := unix.Mkdirat(at, name, 0o755)
		below, openErr := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		if err := errors.Join(err, openErr); err != nil {
			t.Fatal(err)
		}
		at = below
	}
	defer func() { _ = unix.Close(at) }()
	cmd := startAt(t, at, `echo up; exec sleep 1000`)
	t.Cleanup(func() { _ = cmd.Wait() })
	return cmd.Process.Pid
}

// TestDeeperThanAPath has groups nested deeper than PATH_MAX, as a container with the right to make cgroups can, beside
// others: what is in them is listed, killed and removed.
func TestDeeperThanAPath(t *testing.T) {
	g := testGroup(t)
	for _, name := range []string{"a", "z", "z/z"} {
		if err := os.Mkdir(filepath.Join(g.Path(), name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pid := nest(t, g, 30)
	if pids, err := g.Pids(); err != nil || !slices.Equal(pids, []int{pid}) {
		t.Errorf("processes %v, %v; wanted %d", pids, err, pid)
	}
	err := g.Remove()
	if !errors.Is(err, unix.EBUSY) || len(err.Error()) > 1000 {
		t.Errorf("remove of a populated group: %v", err)
	}
	if err := g.killEach(); err != nil {
		t.Fatal(err)
	}
	if err := g.WaitEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(g.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// TestWalkHoldsOneDirectory goes deeper than the process may have files open.
func TestWalkHoldsOneDirectory(t *testing.T) {
	g := testGroup(t)
	_ = nest(t, g, 300)
	before := openFiles(t)
	most := 0
	w := &walk{path: g.Path(), enter: func(*walk) error {
		most = max(most, openFiles(t))
		return nil
	}}
	if err := w.run(); err != nil {
		t.Error(err)
	}
	if most > before+5 {
		t.Errorf("%d files were open, and %d before", most, before)
	}
	if err := g.killEach(); err != nil {
		t.Error(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
