package cgroup

import (
	"os"

	"golang.org/x/sys/unix"
)

// Write writes to a file of a cgroup, in one call. The kernel may refuse with EAGAIN (memory.reclaim does, when it
// cannot have all that was asked), which the files of package os take for a reason to wait until the file can be
// written: for ever.
func Write(file, text string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}
