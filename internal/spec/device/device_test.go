package device

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestList(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"/file", "/sub/file"} {
		if err := os.WriteFile(dir+f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(dir+"/sub/nul", unix.S_IFCHR|0o640, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("cannot make device nodes here: %v", err)
	}
	if err := os.Symlink("sub/nul", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{"": "/sub/nul", "/sub/": "/sub/nul", "/sub/nul": "/sub/nul",
		"/link": "/link"} {
		got, err := List(t.Context(), dir+asked)
		if err != nil || len(got) != 1 || got[0].Path != dir+want || got[0].Type != "c" || got[0].Major != 1 ||
			got[0].Minor != 3 || *got[0].FileMode != 0o640&^umask() {
			t.Errorf("%q: %+v, %v", asked, got, err)
		}
	}
	if _, err := List(t.Context(), dir+"/file"); !errors.Is(err, ErrNotDevice) {
		t.Errorf("a file: %v", err)
	}
	if _, err := List(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestListPassesOverMountsOfContainers fills /dev/shm, as any user may, and looks for none of it.
func TestListPassesOverMountsOfContainers(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "berth-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := unix.Mknod(dir+"/nul", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("cannot make device nodes here: %v", err)
	}
	found, err := List(t.Context(), "/dev")
	if err != nil || len(found) == 0 {
		t.Fatalf("%d devices, %v", len(found), err)
	}
	for _, d := range found {
		if slices.ContainsFunc(ownMounts, func(m string) bool { return strings.HasPrefix(d.Path, m+"/") }) {
			t.Errorf("%s is listed", d.Path)
		}
	}
	if found, err = List(t.Context(), dir); err != nil || len(found) != 1 {
		t.Errorf("the directory itself: %v, %v", found, err)
	}
}

func umask() os.FileMode {
	m := unix.Umask(0)
	unix.Umask(m)
	return os.FileMode(m)
}
