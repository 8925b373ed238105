package monitor

import (
	"os"

	"golang.org/x/sys/unix"
)

// give lets a process in a user namespace open its standard streams anew, as by /dev/stderr: its runtime cannot give it
// what is the host's. Streams that lead to the host's /dev/null are left out: that one stays the host's, whatever a
// runtime tries.
func give(c *container, fds [3]int) [3]int {
	o := c.bundle.Owner
	if o == nil {
		return fds
	}
	for i, fd := range fds {
		var st unix.Stat_t
		if fd < 0 || unix.Fstat(fd, &st) != nil {
			continue
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFIFO:
			_ = unix.Fchown(fd, o.UID, o.GID) // else only opening it anew fails
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == nullDevice:
			fds[i] = noFile
		}
	}
	return fds
}

// nullDevice is the number of /dev/null.
var nullDevice = unix.Mkdev(1, 3)

// openNull opens /dev/null, or a device file like it that no other process has: a runtime may give that to its process.
func openNull(own bool) (*os.File, error) {
	if own {
		if f, err := makeNull(); err == nil {
			return f, nil
		}
	}
	return os.OpenFile(os.DevNull, os.O_RDWR, 0)
}

// makeNull makes the device file in a file system in memory that is mounted nowhere, and so lasts as long as the file
// is open.
func makeNull() (*os.File, error) {
	ctx, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, err
	}
	mount, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mount)
	if err := unix.Mknodat(mount, "null", unix.S_IFCHR|0o666, int(nullDevice)); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(mount, "null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "null"), nil
}
