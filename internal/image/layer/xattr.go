package layer

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errNoXattrRoom says that a file system keeps no such attribute, or no more of them on one file. It does not say
// that the file system is full: its owner has nothing to remove.
var errNoXattrRoom = errors.New("the file system keeps no more extended attributes of it")

// roomForXattr is what a file system has free where the lack of room for an attribute is not its own.
const roomForXattr = 256 << 10

// setXattr sets an attribute of what host names in a directory; of a symlink, its own. ext4 keeps the attributes of a
// file in one block, and btrfs each in one: for what does not fit they have the same error as for a full disk.
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

// hasRoom says that a file system, which look tells of, has blocks and inodes for any attribute.
func hasRoom(look func(*unix.Statfs_t) error) bool {
	var st unix.Statfs_t
	if err := look(&st); err != nil {
		return false
	}
	return st.Bfree >= roomForXattr/uint64(max(st.Bsize, 1)) && (st.Files == 0 || st.Ffree > 0)
}

// unkept says that a file system, or the kind of a file, does not keep an attribute.
func unkept(err error, of string) bool {
	return errors.Is(err, unix.ENOTSUP) || errors.Is(err, errNoXattrRoom) ||
		errors.Is(err, unix.EPERM) && of != typeFile && of != typeDir
}
