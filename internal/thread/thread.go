// Package thread runs what changes a thread, such as its namespaces, its directory or its user, so that nothing else
// meets that.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, so that no goroutine ever meets what f did to the thread. The process's
// first thread never ends: it would keep f's namespaces and directory for ever, and is what /proc/self shows. It is
// held while another does the work.
func Run(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		if unix.Gettid() == unix.Getpid() {
			err := Run(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
