// Package pipe reads what a process has written, also when there is no more time to wait for it.
package pipe

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxRest is how much is read after a deadline, in bytes: as much as a pipe can be made to hold.
const maxRest = 1 << 20

// Copy copies from a pipe or a terminal until its end or its read deadline. A deadline ends the waiting for more: what
// is in the pipe by then is copied, and is not lost to a reader that had no time until then.
func Copy(w io.Writer, r *os.File) (int64, error) {
	n, err := io.Copy(w, r)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	k, err := rest(w, r)
	return n + k, err
}

func rest(w io.Writer, r *os.File) (copied int64, err error) {
	rc, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	for buf := make([]byte, 64<<10); copied < maxRest; {
		n := 0
		var readErr error
		if err := rc.Control(func(fd uintptr) { n, readErr = unix.Read(int(fd), buf) }); err != nil {
			return copied, err
		}
		if readErr == unix.EINTR {
			continue
		}
		if readErr != nil || n <= 0 { // it is empty, or at its end
			return copied, nil
		}
		k, err := w.Write(buf[:n])
		copied += int64(k)
		if err != nil {
			return copied, err
		}
	}
	return copied, nil
}
