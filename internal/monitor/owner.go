package monitor

import (
	"os"

	"golang.org/x/sys/unix"
)

// give chooses what a runtime gets as the standard streams of a container's process. One that leads to the host's
// /dev/null is left out: a process that has it can change its mode, and a runtime its owner (crun gives it to the
// container's user before containers/crun#1847). A process in a user namespace may open its streams anew, as by
// /dev/stderr: its runtime cannot give it what is the host's.
func give(c *container, fds [3]int) [3]int {
	for i, fd := range fds {
		var st unix.Stat_t
		if fd < 0 || unix.Fstat(fd, &st) != nil {
			continue
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == nullDevice:
			fds[i] = noFile
		case st.Mode&unix.S_IFMT == unix.S_IFIFO && c.bundle.Owner != nil:
			_ = unix.Fchown(fd, c.bundle.Owner.UID, c.bundle.Owner.GID) // else only opening it anew fails
		}
	}
	return fds
}

// nullDevice is the number of /dev/null.
var nullDevice = unix.Mkdev(1, 3)

// openNull opens /dev/null, or a device file like it that no other process has: a runtime gives that to its process.
// Where nobody may make device files, as in many containers, it is /dev/null too.
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
	label := make([]byte, 256) // of SELinux: without the host's one a confined process could not use it
	if n, err := unix.Getxattr(os.DevNull, "security.selinux", label); err == nil {
		_ = unix.Fsetxattr(fd, "security.selinux", label[:n], 0)
	}
	return os.NewFile(uintptr(fd), "null"), nil
}
