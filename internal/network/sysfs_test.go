package network

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// TestWritableSysfs mounts sysfs read-only in a network namespace of its own, as runc does for the first container of a
// pod, and then writable: only with WritableSysfs the second mount is. The first stays as it is.
func TestWritableSysfs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	first, second := t.TempDir(), t.TempDir()
	readOnly := func(path string) bool {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			t.Error(err)
		}
		return st.Flags&unix.ST_RDONLY != 0
	}
	err := thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("sysfs", first, "sysfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		if err := unix.Mount("sysfs", second, "sysfs", 0, ""); err != nil {
			return err
		}
		if !readOnly(second) {
			t.Log("this kernel has a second mount of sysfs be writable by itself")
		}
		if err := unix.Unmount(second, 0); err != nil {
			return err
		}
		held, err := WritableSysfs(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			return err
		}
		defer held.Close()
		if err := unix.Mount("sysfs", second, "sysfs", 0, ""); err != nil {
			return err
		}
		if readOnly(second) || !readOnly(first) {
			t.Errorf("the first mount is read-only: %v, wanted true; the second: %v, wanted false", readOnly(first),
				readOnly(second))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if held, err := WritableSysfs(first + "/none"); err == nil {
		held.Close()
		t.Error("a namespace that is not there has a sysfs")
	}
}
