// Package crun says how crun is executed so that it leaves nothing behind and a container cannot change it.
package crun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openTree is replaced by a test, which has kernels without it.
var openTree = unix.OpenTree

// Program is what to execute in place of the program at path, with the same arguments; release is called when that
// has been done. What is not crun is executed as it is, and so is crun where the kernel has no detached mounts, which
// is before 5.12.
//
// crun does not run from a file that can be written: a container could reach it at /proc/<pid>/exe (CVE-2019-5736).
// Before 1.19 it mounts itself read-only at /tmp/crun.XXXXXX, goes on from there and unmounts it, and one that is
// killed in between leaves the file and the mount. So it is executed from a read-only mount of its file that has no
// place in any tree, and does not copy itself. That mount is dissolved before the program runs, after which no process
// can change its attributes, whatever his capabilities and namespaces: the kernel changes only mounts of a namespace.
func Program(path string) (exec string, release func()) {
	f, err := open(path)
	if err != nil {
		return path, func() {}
	}
	return inProc(f), func() { _ = f.Close() }
}

var errOther = errors.New("it is not crun")

// open opens the program at path on a read-only mount of its own.
func open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	place := os.NewFile(uintptr(fd), path)
	defer place.Close()
	if err := named(place); err != nil {
		return nil, err
	}
	fd, err = openTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	mount := os.NewFile(uintptr(fd), path)
	defer mount.Close() // which dissolves it
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	f, err := os.Open(inProc(mount))
	if err != nil {
		return nil, err
	}
	if err := suited(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// named reports whether a file is a regular one that is called like crun, whatever links lead to it.
func named(f *os.File) error {
	where, err := os.Readlink(inProc(f))
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(filepath.Base(where), "crun") || !info.Mode().IsRegular() {
		return errOther
	}
	return nil
}

// suited reports whether a program can be executed by its descriptor and cannot be written by it. The interpreter of a
// script could not open it.
func suited(f *os.File) error {
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 0); err != nil || string(magic) != "\x7fELF" {
		return errOther
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return errors.New("its mount is not read-only")
	}
	return nil
}

// inProc names a file by this process's descriptor of it. A child would not find it as its own: on the way to the
// program its descriptors are moved about, and another may be where this one is.
func inProc(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }
