package layer

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// target is what metadata is given to: a name in an open directory, or with no name the open file itself, which spares
// the kernel the look-up.
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

// chmod is for anything but a symlink: the name was made a moment ago.
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

func (t target) setTimes(at time.Time) error {
	if t.base != "" {
		return setTimes(t.fd, t.base, at)
	}
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	both := [2]unix.Timespec{ts, ts}
	// Without a path the call is about the open file; no wrapper takes none.
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
