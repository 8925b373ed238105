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

// TestDropControllers has a group with processes below it hold one itself, which it may not while it gives controllers.
func TestDropControllers(t *testing.T) {
	g := testGroup(t)
	given := controllers(t, filepath.Dir(filepath.Dir(g.Path())))
	if len(given) == 0 {
		t.Skip("no group of the cgroup2 hierarchy has a controller here: make test-vm has a machine with some")
	}
	give := "+" + strings.Join(given, " +")
	below, err := Make(g.Path(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	empty, err := Make(g.Path(), "empty/below")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(g.Path()), g.Path(), filepath.Dir(below.Path()),
		filepath.Dir(empty.Path())} {
		if err := Write(filepath.Join(dir, "cgroup.subtree_control"), give); err != nil {
			t.Fatal(err)
		}
	}
	stays := shell(t, "exec sleep 1000")
	if err := Write(filepath.Join(below.Path(), procs), stays); err != nil {
		t.Fatal(err)
	}
	comes := shell(t, "exec sleep 1000")
	if err := Write(filepath.Join(g.Path(), procs), comes); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("a group that gives controllers took a process: %v", err)
	}
	for range 2 {
		if err := DropControllers(g.Path()); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{g.Path(), filepath.Dir(below.Path()), filepath.Dir(empty.Path())} {
		if left := controllers(t, dir); len(left) > 0 {
			t.Errorf("%s gives %v", dir, left)
		}
	}
	if got := controllers(t, filepath.Dir(g.Path())); !slices.Equal(got, given) {
		t.Errorf("the group above gives %v, and gave %v", got, given)
	}
	if err := Write(filepath.Join(g.Path(), procs), comes); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(below.Path(), procs)); strings.TrimSpace(string(text)) != stays {
		t.Errorf("the process below is not where it was: %s, %v", text, err)
	}
}

// TestDropControllersOfNothing is nil where there is no group, and where none gives a controller.
func TestDropControllersOfNothing(t *testing.T) {
	g := testGroup(t)
	if _, err := Make(g.Path(), "a/b"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{g.Path(), g.Path() + "/none"} {
		if err := DropControllers(path); err != nil {
			t.Error(err)
		}
	}
}

// controllers are those that a group gives to the groups below it.
func controllers(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}
