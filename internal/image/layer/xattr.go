package layer

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errNoXattrRoom is returned when a file system cannot store an attribute, or no more of them for one file, although it
// is not full: removing files would not help.
var errNoXattrRoom = errors.New("the file system keeps no more extended attributes of it")

// roomForXattr is the free space from which on ENOSPC for an attribute does not mean that the file system is full.
const roomForXattr = 256 << 10

// setXattr sets an attribute of the file at the path host; of a symlink, its own. ext4 stores all attributes of a file
// in one block, and btrfs each one in a block: where they do not fit, both return ENOSPC, as for a full disk.
func setXattr(host, name string, value []byte) error {
	err := unix.Lsetxattr(host, name, value, 0)
	look := func(st *unix.Statfs_t) error { return unix.Statfs(filepath.Dir(host), st) }
	if errors.Is(err, unix.ENOSPC) && hasRoom(look) {
		return noXattrRoom(name, value)
	}
	return err
}

// fsetXattr sets an attribute of an open file.
func fsetXattr(fd int, name string, value []byte) error {
	err := unix.Fsetxattr(fd, name, value, 0)
	if errors.Is(err, unix.ENOSPC) && hasRoom(func(st *unix.Statfs_t) error { return unix.Fstatfs(fd, st) }) {
		return noXattrRoom(name, value)
	}
	return err
}

func noXattrRoom(name string, value []byte) error {
	return fmt.Errorf("set %s of %d bytes: %w", name, len(value), errNoXattrRoom)
}

// hasRoom reports whether a file system has blocks and inodes for an attribute. look reads the state of the file
// system.
func hasRoom(look func(*unix.Statfs_t) error) bool {
	var st unix.Statfs_t
	if err := look(&st); err != nil {
		return false
	}
	return st.Bfree >= roomForXattr/uint64(max(st.Bsize, 1)) && (st.Files == 0 || st.Ffree > 0)
}

// unkept reports whether an error means that the file system, or the type of the file, does not support an attribute.
func unkept(err error, of string) bool {
	return errors.Is(err, unix.ENOTSUP) || errors.Is(err, errNoXattrRoom) ||
		errors.Is(err, unix.EPERM) && of != typeFile && of != typeDir
}
