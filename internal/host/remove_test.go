package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// precious is a directory with a file that must outlive whatever is removed.
func precious(t *testing.T) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

// TestTryRuntimeThatMounts has a runtime fail with a directory of the host mounted in its bundle.
func TestTryRuntimeThatMounts(t *testing.T) {
	run, dir := runner(t), filepath.Join(t.TempDir(), "a state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	host, file := precious(t)
	path := script(t, filepath.Join(t.TempDir(), "mounts"), fmt.Sprintf(`
[ $1 = --version ] && exec echo mounts version 1
[ $3 = create ] || exit 1
mount --bind %s "$5/rootfs/dev" && mount -t tmpfs none "$5/rootfs/dev" && mkdir -p "$5/rootfs/dev/a/b"
echo "I mounted it" >&2; exit 3`, host))
	got := TryRuntime(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, run)
	if got.Works || !strings.Contains(got.Why, "I mounted it") {
		t.Errorf("%+v", got)
	}
	if !exists(file) {
		t.Error("the host's file is gone")
	}
	if left := leftovers(t, dir, path); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestTryRuntimeThatChangesItsStreams has a runtime that could change its streams, as crun does: none is a file of the
// host.
func TestTryRuntimeThatChangesItsStreams(t *testing.T) {
	run, dir := runner(t), stateDir(t)
	got := filepath.Join(t.TempDir(), "got")
	path := script(t, filepath.Join(t.TempDir(), "changes"), fmt.Sprintf(`
[ $1 = --version ] && exec echo changes version 1
[ $3 = create ] || exit 0
streams=$(for fd in 0 1 2; do readlink -f /proc/$$/fd/$fd; done)
echo "$streams" >%s`, got))
	if got := TryRuntime(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, run); !got.Works {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	for stream := range strings.Lines(string(text)) {
		if !strings.HasPrefix(stream, dir+"/") {
			t.Errorf("it has %s", stream)
		}
	}
}

// TestRemoveHere wants a mount that could not be unmounted to stop the removal.
func TestRemoveHere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	base := t.TempDir()
	host, file := precious(t)
	at := filepath.Join(base, "tree", "below", "mount")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(host, filepath.Join(base, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(host, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	parent, err := os.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	if err := removeHere(parent, "tree"); err == nil || !strings.Contains(err.Error(), at+": something is mounted there") {
		t.Errorf("with a mount in it: %v", err)
	}
	if !exists(file) {
		t.Fatal("the host's file is gone")
	}
	if err := removeTree(filepath.Join(base, "tree")); err != nil || exists(filepath.Join(base, "tree")) {
		t.Errorf("removeTree: %v", err)
	}
	if !exists(file) {
		t.Error("the host's file is gone")
	}
}

// TestRemoveSharedMounts removes a tree in which a mount has come twice, since it was shared with the directory below.
func TestRemoveSharedMounts(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "trial", "root")
	mount := func(at, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(at, at, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	mount(dir, "tmpfs", 0)
	mount(dir, "", unix.MS_SHARED)
	mount(dir, "", unix.MS_BIND) // of the same peers
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(sub, "tmpfs", 0)
	if mounted, err := mountsAt(sub); err != nil || len(mounted) != 2 {
		t.Fatalf("mounted: %v, %v", mounted, err)
	}
	if err := removeTree(filepath.Dir(sub)); err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Dir(sub)) {
		t.Error("it is still there")
	}
}
