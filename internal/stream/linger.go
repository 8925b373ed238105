package stream

import (
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lingerTime is how long a connection whose session has ended may stay without that anything moves: its client has
	// not read what was sent, or has, and does not close.
	lingerTime = time.Minute
	lingerTick = 500 * time.Millisecond
)

// linger ends the connection c of a session, below which is the line of r. A connection that is closed while there
// is input that was not read, or while more of it comes, is reset by the kernel, and what the client has not yet got
// of its output is lost. So this says that no more will come, and reads on into nothing until the client closes,
// too.
func linger(r *http.Request, c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if n, ok := r.Context().Value(lineKey{}).(*line); ok {
		n.drain()
	}
	_ = c.Close()
}

// drain reads into nothing until the client has closed the connection, or nothing moves any more, and closes it.
// Somebody else may still be reading: what it takes is nothing, too, and it is sent away by the deadline.
func (n *line) drain() {
	defer n.Close()
	_ = n.CloseWrite() // TLS leaves it open
	buf := make([]byte, 16<<10)
	for moved, before := time.Now(), int64(-1); time.Since(moved) < lingerTime; {
		_ = n.SetReadDeadline(time.Now().Add(lingerTick))
		if _, err := n.Read(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || n.ctx.Err() != nil {
			return
		}
		if unsent := n.unsent(); unsent != before {
			moved, before = time.Now(), unsent
		}
	}
}

// unsent is how many bytes the client's kernel has not acknowledged.
func (n *line) unsent() (bytes int64) {
	rc, err := n.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) {
		queued, _ := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		bytes = int64(queued)
	})
	return bytes
}
