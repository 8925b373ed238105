package memory

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Killed reports whether the kernel's log has that it killed a process because of a bound of memory. The counters of a
// group would say it too, but systemd removes the group before the next daemon starts. Where the log cannot be read, as
// in a container, no process was killed.
func Killed(pid int) bool { return killedBy("/dev/kmsg", pid) }

func killedBy(path string, pid int) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	words := fmt.Sprintf("Memory cgroup out of memory: Killed process %d ", pid)
	buf := make([]byte, 8<<10) // of one record, of which each read returns one
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // records were overwritten meanwhile
			continue
		case err != nil || n <= 0:
			return false
		}
		if strings.Contains(string(buf[:n]), words) {
			return true
		}
	}
}
