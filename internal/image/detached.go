package image

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// detach opens a directory through a detached mount, which has the given attributes and nosuid, nodev and noexec.
// Nothing above the directory can be reached through it. It is private: kernels before 6.17 pass nothing on to mounts
// whose master is a detached one, and would take it for the master of what is cloned from the same mount. It needs
// Linux 5.12.
func detach(path string, attributes uint64) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "clone the mount of", Path: path, Err: err}
	}
	attr := &unix.MountAttr{
		Attr_set: attributes | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		// The read-only flag is cleared: the clone would keep it after the original mount has become writable again.
		Attr_clr:    unix.MOUNT_ATTR_RDONLY &^ attributes,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("restrict the mount of %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openPlain opens a directory without a mount of its own.
func openPlain(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openDirIn opens a directory that is in an open directory.
func openDirIn(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
