package monitor

import (
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxDrained is how many streams a monitor drains at once. It bounds what a container can cost the monitor whose probes
// leave a process behind each time.
const maxDrained = 128

// drainPause is the pause between two reads of a drained stream, and grows with each drainShare of them. With
// bufferSize it bounds how fast processes can write to streams without a reader, 3 MB/s to one and 26 MB/s to all of a
// pod, and so the processor time that draining costs the node.
const drainPause, drainShare = 10 * time.Millisecond, 8

// drainer reads streams whose content no client wants, so that the processes that hold their other ends can go on
// writing to them.
type drainer struct{ streams atomic.Int32 }

// take drains streams until nothing holds their other ends, and closes them then. It closes those at once for which
// there is no room, and says so.
func (d *drainer) take(m *Monitor, fds []int) (full bool) {
	for _, fd := range fds {
		if d.streams.Add(1) > maxDrained {
			d.streams.Add(-1)
			_ = unix.Close(fd)
			full = true
			continue
		}
		_ = unix.SetNonblock(fd, true)
		go d.drain(m, os.NewFile(uintptr(fd), "drained"))
	}
	return full
}

func (d *drainer) drain(m *Monitor, f *os.File) {
	defer d.streams.Add(-1)
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	pause := func() { time.Sleep(drainPause * time.Duration(1+d.streams.Load()/drainShare)) }
	for n := 1; n > 0; pause() {
		if err := rc.Read(func(fd uintptr) bool {
			b := m.takeBuffer()
			defer m.giveBuffer(b)
			n, err = unix.Read(int(fd), b[:])
			return err != unix.EAGAIN && err != unix.EINTR
		}); err != nil {
			return
		}
	}
}
