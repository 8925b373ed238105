package monitor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct of that name, large enough for every architecture.
type sigaction struct{ handler, flags, restorer, mask uintptr }

// ignoreSignals has this process pass over the signals that a whole session, group or machine is sent: a monitor ends
// when its pod does. The programs that it starts do not ignore them: the Go runtime, which had handlers for them, gives
// its children the default ones back. os/signal would do the same, at the price of three threads.
func ignoreSignals() {
	act := sigaction{handler: 1} // SIG_IGN
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	}
}

// defaultSignals gives every signal that was ignored when this process began its default back: containers would inherit
// that, and it was meant for whoever started the daemon (nohup, a shell's background job, make).
func defaultSignals() {
	for s := uintptr(1); s <= 64; s++ {
		var was, def sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, 0, uintptr(unsafe.Pointer(&was)), 8, 0, 0)
		if errno == 0 && was.handler == 1 {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&def)), 0, 8, 0, 0)
		}
	}
}
