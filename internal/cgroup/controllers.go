package cgroup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DropControllers has a group of the cgroup2 hierarchy, and all below it, give no controllers to the groups below them,
// so that the first may hold processes itself: the kernel lets none into a group that gives controllers while any
// process is below it. The processes there stay where they are, and lose the bounds that they had there. There may be
// no such group.
func DropControllers(path string) error {
	top, err := openGroup(unix.AT_FDCWD, path)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer top.Close()
	var errs []error
	// A group cannot take a controller back that one below it gives on: the lowest come first.
	w := &walk{path: path, leave: func(above *os.File, name string) error {
		errs = append(errs, dropControllers(above, name))
		return nil
	}}
	errs = append(errs, w.run(), dropControllers(top, "."))
	return errors.Join(errs...)
}

func dropControllers(above *os.File, name string) error {
	file := filepath.Join(name, "cgroup.subtree_control")
	fd, err := unix.Openat(int(above.Fd()), file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	given, err := io.ReadAll(f)
	if err == nil && len(strings.Fields(string(given))) > 0 {
		_, err = f.WriteString("-" + strings.Join(strings.Fields(string(given)), " -"))
	}
	if isGone(err) {
		return nil
	}
	return err
}
