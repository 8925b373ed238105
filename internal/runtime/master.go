package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// terminalID identifies a terminal of the node: two containers may call theirs by the same name.
type terminalID struct {
	major, minor uint32 // of the file system
	inode        uint64
}

// takeMaster copies the master of a container's terminal from the pod's monitor, which need not answer: the kernel
// gives it. It is that of a terminal which the container's first process has as one of its standard streams. It is nil
// where none is found: the terminal is hung up then when the monitor is killed.
func takeMaster(l *link, ctr string, p Process) *os.File {
	terminals := terminalsOf(p)
	pids, err := l.cfg.monitorGroup(l.pod).Pids()
	for _, pid := range pids {
		f, takeErr := takeMasterFrom(pid, terminals)
		if f != nil {
			return f
		}
		err = errors.Join(err, takeErr)
	}
	if err == nil {
		err = fs.ErrNotExist
	}
	l.cfg.Log.Warn("a monitor that hangs is killed, and a container's terminal, which only that has, is hung up", "pod",
		l.pod, "container", ctr, "error", err)
	return nil
}

// terminalsOf returns the terminals among the standard streams of a process. Of other files only the names are looked
// at: they may be on a disk that hangs.
func terminalsOf(p Process) map[terminalID]bool {
	found := map[terminalID]bool{}
	for fd := range 3 {
		at := fmt.Sprintf("/proc/%d/fd/%d", p.PID, fd)
		name, err := os.Readlink(at)
		if err != nil || !strings.HasPrefix(name, "/dev/pts/") && name != "/dev/console" {
			continue
		}
		if id, err := identify(unix.AT_FDCWD, at); err == nil {
			found[id] = true
		}
	}
	return found
}

// takeMasterFrom copies the master of one of the terminals from a process, nil where it has none of them.
func takeMasterFrom(pid int, terminals map[terminalID]bool) (*os.File, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range open {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || filepath.Base(name) != "ptmx" {
			continue
		}
		number, _ := strconv.Atoi(e.Name())
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err != nil {
			errs = append(errs, os.NewSyscallError("pidfd_getfd", err))
			continue
		}
		id, err := terminalOf(fd)
		if err == nil && terminals[id] {
			return os.NewFile(uintptr(fd), "terminal"), nil
		}
		errs = append(errs, err)
		_ = unix.Close(fd)
	}
	return nil, errors.Join(errs...)
}

// terminalOf returns which terminal a master is of.
func terminalOf(master int) (terminalID, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return terminalID{}, os.NewSyscallError("ioctl TIOCGPTPEER", errno)
	}
	defer unix.Close(int(fd))
	return identify(int(fd), "")
}

// identify returns which terminal a file is, without a question to a server of files.
func identify(fd int, path string) (terminalID, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, path, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
		err = unix.ENOTTY
	}
	return terminalID{st.Dev_major, st.Dev_minor, st.Ino}, os.NewSyscallError("statx", err)
}
