package layer

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// target is a file to be given metadata: a name in an open directory or, without a name, the open file fd itself, which
// saves the kernel the look-up.
type target struct {
	fd   int
	base string
}

func (t target) chown(uid, gid int) error {
	if t.base == "" {
		return unix.Fchown(t.fd, uid, gid)
	}
	return unix.Fchownat(t.fd, t.base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

// chmod follows symlinks, so the caller must know that the file, which it has just made, is none.
func (t target) chmod(mode uint32) error {
	if t.base == "" {
		return unix.Fchmod(t.fd, mode)
	}
	return unix.Fchmodat(t.fd, t.base, mode, 0)
}

func (t target) setXattr(name string, value []byte) error {
	if t.base == "" {
		return fsetXattr(t.fd, name, value)
	}
	return setXattr(procPath(t.fd, t.base), name, value)
}

// xattr reads an attribute.
func (t target) xattr(name string) ([]byte, error) {
	if t.base != "" {
		return lgetxattr(procPath(t.fd, t.base), name)
	}
	return readXattr(func(buf []byte) (int, error) { return unix.Fgetxattr(t.fd, name, buf) })
}

func (t target) stat() (st unix.Stat_t, err error) {
	if t.base == "" {
		err = unix.Fstat(t.fd, &st)
	} else {
		err = unix.Fstatat(t.fd, t.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	return st, err
}

func (t target) setTimes(at time.Time) error {
	if t.base != "" {
		return setTimes(t.fd, t.base, at)
	}
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	both := [2]unix.Timespec{ts, ts}
	// With a null path utimensat(2) changes the open file. Package unix has no wrapper that passes one.
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(t.fd), 0, uintptr(unsafe.Pointer(&both)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// writeAt writes all of b to an open file.
func writeAt(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}
