package monitor

import "golang.org/x/sys/unix"

// sink is an attached client: descriptors that do not block, below zero where it has none.
type sink struct {
	stdout, stderr int
	notice         int // gets a byte when the client is dropped
}

// write is EAGAIN when the client has not kept up.
func (k *sink) write(n int, p []byte) error {
	fd := k.fds()[n]
	for fd >= 0 && len(p) > 0 {
		w, err := unix.Write(fd, p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p = p[w:]
	}
	return nil
}

// fds are the descriptors by the number of the stream; the first is the notice.
func (k *sink) fds() [3]int { return [3]int{k.notice, k.stdout, k.stderr} }

// drop tells the client that it is too slow.
func (k *sink) drop() {
	if k.notice >= 0 {
		_, _ = unix.Write(k.notice, []byte{1})
	}
	k.close()
}

func (k *sink) close() { closeAll(k.fds()) }
