package monitor

import "golang.org/x/sys/unix"

// sink is an attached client: descriptors that do not block, below zero where it has none.
type sink struct {
	stdout, stderr int
	notice         int // gets a byte when the client is dropped
}

// attach adds a client; its descriptors are closed when the output ends or the client is too slow.
func (o *output) attach(k sink) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left == 0 {
		k.close()
		return nil
	}
	for _, fd := range k.fds() {
		if fd >= 0 {
			if err := unix.SetNonblock(fd, true); err != nil {
				k.close()
				return err
			}
		}
	}
	o.sinks = append(o.sinks, &k)
	return nil
}

// toSinks gives a piece of stream n to the attached, and drops those that do not keep up.
func toSinks(o *output, n int, piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.sinks[:0]
	for _, k := range o.sinks {
		switch k.write(n, piece) {
		case nil:
			kept = append(kept, k)
		case unix.EAGAIN:
			k.drop()
		default: // it went away
			k.close()
		}
	}
	o.sinks = kept
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

// drop tells the client that it was too slow.
func (k *sink) drop() {
	if k.notice >= 0 {
		_, _ = unix.Write(k.notice, []byte{1})
	}
	k.close()
}

func (k *sink) close() { closeAll(k.fds()) }
