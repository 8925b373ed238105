package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mounted mounts a file system for a test.
func mounted(t *testing.T, kind string, flags uintptr, data string) string {
	t.Helper()
	dir := filepath.Join(needRoot(t), "with:odd,name\\")
	must(t, os.Mkdir(dir, 0o755))
	if err := unix.Mount(kind, dir, kind, flags, data); err != nil {
		t.Skipf("no %s here: %v", kind, err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	return dir
}

func TestTryLayers(t *testing.T) {
	for name, dir := range map[string]string{
		"usual":      needRoot(t),
		"tmpfs":      mounted(t, "tmpfs", 0, ""),
		"restricted": mounted(t, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, ""),
	} {
		if err := TryLayers(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
}

func TestTryLayersUnfit(t *testing.T) {
	dir := mounted(t, "ramfs", 0, "")
	err := TryLayers(dir)
	var unfit *UnfitError
	if !errors.As(err, &unfit) || unfit.Dir != dir ||
		!strings.Contains(err.Error(), "it has no trusted.* extended attributes") {
		t.Errorf("got %v", err)
	}
}

// TestTryLayersUnknown has file systems on which nothing can be found out now.
func TestTryLayersUnknown(t *testing.T) {
	full := mounted(t, "tmpfs", 0, "nr_inodes=4")
	readOnly := mounted(t, "tmpfs", unix.MS_RDONLY, "")
	for dir, want := range map[string]error{full: unix.ENOSPC, readOnly: unix.EROFS,
		filepath.Join(full, "none"): unix.ENOENT} {
		err := TryLayers(dir)
		var unfit *UnfitError
		if !errors.Is(err, want) || errors.As(err, &unfit) {
			t.Errorf("wanted %v, got %v", want, err)
		}
	}
}
