package monitor

import "golang.org/x/sys/unix"

// sink is an attached client: descriptors that do not block.
type sink struct{ fds [3]int }

// attach adds a client; its descriptors are closed when the output ends or the client is too slow.
func (o *output) attach(fds [3]int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := &sink{fds}
	if o.left == 0 {
		k.close()
		return nil
	}
	for _, fd := range fds {
		if fd >= 0 {
			if err := unix.SetNonblock(fd, true); err != nil {
				k.close()
				return err
			}
		}
	}
	o.sinks = append(o.sinks, k)
	return nil
}

// toSinks gives a piece of stream n to the attached, and drops those that do not keep up.
func toSinks(o *output, n int, piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.sinks[:0]
	for _, k := range o.sinks {
		if k.write(n, piece) {
			kept = append(kept, k)
		} else {
			k.close()
		}
	}
	o.sinks = kept
}

// write says whether the client has kept up.
func (k *sink) write(n int, p []byte) bool {
	if k.fds[n] < 0 {
		return true
	}
	for len(p) > 0 {
		w, err := unix.Write(k.fds[n], p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		p = p[w:]
	}
	return true
}

func (k *sink) close() { closeAll(k.fds) }
