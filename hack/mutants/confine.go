package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// confine leaves little that a mutant can write: the compiler's cache, the list, and an empty /tmp. The directory bin
// of the repository, into which tests build programs, is an empty one too.
func confine(root, list string) error {
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("find the compiler's cache: %w", err)
	}
	for _, path := range []string{strings.TrimSpace(string(cache)), list} {
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, empty := range []string{"/tmp", "/var/tmp", bin} {
		if err := unix.Mount("tmpfs", empty, "tmpfs", 0, "mode=1777,size=4g"); err != nil {
			return fmt.Errorf("mount an empty %s: %w", empty, err)
		}
	}
	err = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	return os.NewSyscallError("mount / read-only", err)
}

// emptyTmp takes away what the tests before have left: the mounts and files of /tmp, and the cgroups that are named
// like something there.
func emptyTmp() error {
	entries, err := os.ReadDir("/tmp")
	if err != nil {
		return err
	}
	if err := unix.Unmount("/tmp", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /tmp: %w", err)
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777,size=4g"); err != nil {
		return fmt.Errorf("mount an empty /tmp: %w", err)
	}
	for _, e := range entries {
		if err := removeCgroups(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the cgroups in the path of which name is.
func removeCgroups(name string) error {
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, name) {
			found = append(found, path)
		}
		return nil // groups of others come and go
	})
	for _, path := range slices.Backward(found) {
		if rm := unix.Rmdir(path); rm != nil && !errors.Is(rm, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", path, rm))
		}
	}
	return err
}

// endOthers kills all other processes of the namespace: those that the tests have left. It refuses where the first
// process is not this program, as it is in a namespace of package isolate.
func endOthers() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	first, err := os.Readlink("/proc/1/exe")
	if err != nil {
		return err
	}
	if self != first {
		return fmt.Errorf("the first process is %s: this is no namespace of its own", first)
	}
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end what the tests have left: %w", err)
	}
	return nil
}
