package monitor

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Init runs a pod's init: it reaps the processes that are given to it, and ends when it is told to.
func Init() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)
	for {
		select {
		case <-stop:
			return
		case <-child:
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
				break
			}
		}
	}
}
