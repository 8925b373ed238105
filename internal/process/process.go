// Package process reads what the kernel says of a process: whether it lives, what it waits for, how it ended.
//
// A process is named by its pid and the time at which it began, so that another one that has the same pid later is
// never taken for it. One that cannot be looked at, because there is no descriptor or memory left to do so, counts as
// one that lives.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// stat holds the fields of a process's stat file behind its name, which may itself hold anything. The first is the
// state, the third field of proc(5).
type stat []string

// The places of fields in a stat.
const (
	statState, statThreads, statStart, statExit = 0, 17, 19, 49
)

// ended reports whether the process has. One whose first thread alone has ended is a zombie, too, and goes on in the
// others.
func (s stat) ended() bool {
	return s[statState] == "X" || s[statState] == "Z" && (s[statThreads] == "1" || s[statThreads] == "0")
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) <= statStart {
		return nil, fmt.Errorf("process %d: its stat file makes no sense", pid)
	}
	return f, nil
}

// Start is when a process, or what is left of it, began, in clock ticks after boot.
func Start(pid int) (uint64, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(s[statStart], 10, 64)
}

// Alive reports whether the process that began then still lives. A zombie does not.
func Alive(pid int, start uint64) bool {
	s, err := statOf(pid, start)
	if err != nil {
		return err != unix.ESRCH
	}
	return !s.ended()
}

// Gone reports whether nothing is left of the process that began then, not even a zombie.
func Gone(pid int, start uint64) bool {
	_, err := statOf(pid, start)
	return err == unix.ESRCH
}

// statOf is the stat of the process that began then. The error is ESRCH when it is gone, or another process has its pid
// by now; others say what keeps from looking.
func statOf(pid int, start uint64) (stat, error) {
	s, err := readStat(pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return nil, err
	}
	if err != nil || s[statStart] != strconv.FormatUint(start, 10) {
		return nil, unix.ESRCH
	}
	return s, nil
}

// Open returns a descriptor of the process that began then (pidfd_open(2)), which may be a zombie. It does not block,
// so that Wait needs no thread.
func Open(pid int, start uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	if _, err := statOf(pid, start); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Wait returns nil when the process behind a descriptor of Open has ended, or the cause of ctx's end. Only one call may
// wait on a descriptor.
func Wait(ctx context.Context, pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Now()) })
	defer stop()
	err = rc.Read(func(fd uintptr) bool {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Signal sends a signal to the process behind a descriptor of Open. One that has ended needs none.
func Signal(pidfd *os.File, sig int) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = rc.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), unix.Signal(sig), nil, 0) })
	if err == nil && sendErr != nil && sendErr != unix.ESRCH {
		err = fmt.Errorf("send signal %d: %w", sig, sendErr)
	}
	return err
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h>, as first released.
type pidfdInfo struct {
	mask, cgroupID                                              uint64
	pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fu, fg uint32
	exitCode                                                    int32
}

const (
	pidfdInfoExit = 1 << 3
	pidfdGetInfo  = 0xC000FF0B | unsafe.Sizeof(pidfdInfo{})<<16 // _IOWR(0xFF, 11, struct pidfd_info)
)

// Ending is how a process ended that need not be a child of the caller. While it is a zombie /proc tells; when its
// parent has reaped it the kernel tells by the descriptor, since Linux 6.15. Otherwise ok is false. pidfd may be nil.
func Ending(pid int, start uint64, pidfd *os.File) (status unix.WaitStatus, ok bool) {
	if s, err := statOf(pid, start); err == nil && len(s) > statExit && s[statState] == "Z" && s.ended() {
		n, err := strconv.ParseUint(s[statExit], 10, 32)
		return unix.WaitStatus(n), err == nil
	}
	if pidfd == nil {
		return 0, false
	}
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return 0, false
	}
	var told error
	err = rc.Control(func(fd uintptr) { status, ok, told = Reaped(int(fd)) })
	return status, err == nil && told == nil && ok
}

// Reaped asks the kernel by a pidfd how a process ended that its parent has reaped, which it tells since Linux 6.15. An
// error says that it does not.
func Reaped(pidfd int) (status unix.WaitStatus, ok bool, err error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exitCode), info.mask&pidfdInfoExit != 0, nil
}

// states are what the letters of a process's state mean to a person.
var states = map[string]string{
	"R": "runs", "S": "sleeps", "D": "waits in the kernel and cannot be interrupted", "T": "is stopped by a signal",
	"t": "is stopped by a debugger", "I": "is idle", "Z": "goes on without its first thread",
}

// Describe says in words what a process that began then does, for a person who wonders why it does not go.
func Describe(pid int, start uint64) string {
	s, err := statOf(pid, start)
	switch {
	case err == unix.ESRCH:
		return fmt.Sprintf("process %d is gone", pid)
	case err != nil:
		return fmt.Sprintf("process %d cannot be looked at: %v", pid, err)
	case s.ended():
		return fmt.Sprintf("process %d has ended, and its parent has not taken note of it", pid)
	}
	what := states[s[statState]]
	if what == "" {
		what = "is in state " + s[statState]
	}
	text := fmt.Sprintf("process %d %s", pid, what)
	if held := Held(pid); held != "" {
		return text + "; it is " + held
	}
	if at, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid)); err == nil && len(at) > 1 {
		text += " (in " + string(at) + ")"
	}
	return text
}

// Held says by what a process is kept from running on purpose, "" when by nothing: the freezer of its cgroup, or
// somebody who traces it.
func Held(pid int) string {
	if cgroup.Frozen(pid) {
		return "frozen with its cgroup"
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data), "\nTracerPid:")
	tracer, _, _ := strings.Cut(strings.TrimLeft(rest, "\t "), "\n")
	if tracer != "" && tracer != "0" {
		return "traced by process " + tracer
	}
	return ""
}
