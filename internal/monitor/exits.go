package monitor

import (
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	proc "berth/internal/process"
)

func unknownExit() wire.Exit {
	return wire.Exit{Code: 255, Unknown: true, FinishedAt: time.Now().UnixNano()}
}

// killedExit is the exit of a container whose sandbox is gone, and which therefore has no exit of its own.
func killedExit() wire.Exit {
	return wire.Exit{Code: 128 + int32(unix.SIGKILL), Signal: int(unix.SIGKILL), FinishedAt: time.Now().UnixNano()}
}

// exitPatience is how long to wait for the kernel to tell how a process ended.
const exitPatience = 15 * time.Second

// exitOf finds out how a process ended that is not a child. While it is a zombie /proc tells; once its new parent has
// reaped it the kernel does, through PIDFD_GET_INFO, since Linux 6.15. Before that, it cannot be known.
func exitOf(p wire.Process, pidfd int) wire.Exit {
	x := unknownExit()
	for end := time.Now().Add(exitPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ws, ok := proc.Ending(p.PID, p.StartTime, nil)
		var why error
		if !ok {
			ws, ok, why = proc.Reaped(pidfd)
		}
		if ok {
			x.Code, x.Unknown = int32(ending{status: ws}.code()), false
			if ws.Signaled() {
				x.Signal = int(ws.Signal())
			}
			return x
		}
		if why != nil && why != unix.ESRCH && proc.Gone(p.PID, p.StartTime) {
			return x // reaped, and this kernel does not tell
		}
	}
	return x
}
