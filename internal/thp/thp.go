// Package thp keeps transparent huge pages away from processes that are small and many, and no others. Where the kernel gives them to
// everybody ("always", as kernels of Debian and Red Hat do), the first word of a Go heap takes 2 MiB: more than the rest of a monitor.
//
// The source is PR_SET_THP_DISABLE of prctl(2), and Documentation/admin-guide/mm/transhuge.rst: what is set is a process's own, goes on
// to its children and stays over an exec. A kernel that does not know it, or does not allow it, costs memory and is no error.
package thp

import (
	"bytes"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// enabled is what tells who gets huge pages: the word in brackets.
const enabled = "/sys/kernel/mm/transparent_hugepage/enabled"

var turn sync.Mutex // held by the one who has changed what this process has

// With calls start, which forks and execs, such that what is exec'd has huge pages, or has none. What else this process execs meanwhile
// may share that.
func With(on bool, start func() error) error {
	turn.Lock()
	defer turn.Unlock()
	if has() != on {
		set(on)
		defer set(!on)
	}
	return start()
}

// Shed begins this program anew without huge pages, as the process that it is, where everybody gets them. It returns where there is
// nothing to shed. It is for the very beginning of a program.
func Shed() {
	if who, err := os.ReadFile(enabled); err != nil || !bytes.Contains(who, []byte("[always]")) || !has() {
		return
	}
	if set(false); has() {
		return // it would begin for ever
	}
	_ = unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// has says whether this process may get huge pages.
func has() bool {
	off, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	return err != nil || off == 0
}

func set(on bool) {
	off := uintptr(1)
	if on {
		off = 0
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, off, 0, 0, 0)
}
