package monitor

import (
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

func unknownExit() wire.Exit {
	return wire.Exit{Code: 255, Unknown: true, FinishedAt: time.Now().UnixNano()}
}

// killedExit is the exit of a container whose sandbox is gone, and which therefore has no exit of its own.
func killedExit() wire.Exit {
	return wire.Exit{Code: 128 + int32(unix.SIGKILL), Signal: int(unix.SIGKILL), FinishedAt: time.Now().UnixNano()}
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

// exitPatience is how long to wait for the kernel to tell how a process ended.
const exitPatience = 15 * time.Second

// exitOf finds out how a process ended that is not a child. While it is a zombie /proc tells; once its new parent has
// reaped it the kernel does, through PIDFD_GET_INFO, since Linux 6.15. Before that, it cannot be known.
func exitOf(p wire.Process, pidfd int) wire.Exit {
	x := unknownExit()
	for end := time.Now().Add(exitPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ws, ok := zombieStatus(p)
		var why error
		if !ok {
			ws, ok, why = reapedStatus(pidfd)
		}
		if ok {
			x.Code, x.Unknown = int32(ending{status: ws}.code()), false
			if ws.Signaled() {
				x.Signal = int(ws.Signal())
			}
			return x
		}
		if began, err := StartTime(p.PID); why != nil && why != unix.ESRCH && (err != nil || began != p.StartTime) {
			return x // reaped, and this kernel does not tell
		}
	}
	return x
}

// reapedStatus asks the kernel for the wait status of a process that has been reaped.
func reapedStatus(pidfd int) (unix.WaitStatus, bool, error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exitCode), info.mask&pidfdInfoExit != 0, nil
}

// zombieStatus reads the wait status of a process that has ended and not been reaped: the last field of its stat file.
func zombieStatus(p wire.Process) (unix.WaitStatus, bool) {
	f, err := statFields(p.PID)
	if err != nil || len(f) < 50 || f[0] != "Z" || othersRun(f) || f[19] != strconv.FormatUint(p.StartTime, 10) {
		return 0, false
	}
	n, err := strconv.ParseUint(f[49], 10, 32)
	return unix.WaitStatus(n), err == nil
}

// othersRun reports whether a process whose first thread is a zombie goes on in others, by the fields of its stat file.
func othersRun(f []string) bool { return f[17] != "0" && f[17] != "1" }
