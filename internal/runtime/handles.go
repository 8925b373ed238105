package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/internal/process"
)

// handle is what the daemon holds open of a container, whichever monitor it has: a pidfd, by which the process can be
// sent a signal, be seen to end and be asked how it ended, and the master of a terminal. An input that is meant for one
// client would end if no process held it, and with the container's end what its monitor has not taken of its output.
type handle struct {
	pidfd, console, stdin *os.File
	output                []int   // raw: this process is not to be woken by what a container writes
	lacks                 bool    // something of it could not be opened for a lack of the node, and is tried again
	inputEnded            bool    // stdin was closed for good: each monitor is told that does not know
	dropped               Dropped // of its log, as far as it was told
}

// openHandle opens what is held of a container by its names, with input its standard input, too. What is not there is
// not held. An error says what the node lacks, mostly descriptors, to open all that is there.
func openHandle(dir string, p Process, input bool) (h handle, err error) {
	h.pidfd, err = process.Open(p.PID, p.StartTime)
	errs := []error{err}
	h.output, err = openOutput(dir)
	errs = append(errs, err)
	if input {
		h.stdin, err = openInput(dir)
		errs = append(errs, err)
	}
	err = errors.Join(slices.DeleteFunc(errs, func(err error) bool { return !wire.Lacks(err) })...)
	h.lacks = err != nil
	return h, err
}

// openOutput opens the FIFOs of a container's output, and reads nothing. One with a terminal has none.
func openOutput(dir string) (fds []int, err error) {
	for _, name := range []string{"stdout", "stderr"} {
		fd, openErr := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if openErr != nil {
			err = fmt.Errorf("open %s: %w", name, openErr)
			continue
		}
		fds = append(fds, fd)
	}
	return fds, err
}

// openInput opens the FIFO of an input that is meant for one client, and writes nothing. Where nobody reads it, that is
// an error.
func openInput(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
}

// filled returns a handle with what it lacks, as far as another has it. The rest of the other is closed.
func (h handle) filled(with handle) handle {
	for _, f := range []struct{ have, get **os.File }{
		{&h.pidfd, &with.pidfd}, {&h.console, &with.console}, {&h.stdin, &with.stdin},
	} {
		if *f.have == nil {
			*f.have, *f.get = *f.get, nil
		}
	}
	if len(h.output) < len(with.output) {
		h.output, with.output = with.output, h.output
	}
	h.lacks = with.lacks
	with.close()
	return h
}

func (h handle) close() {
	for _, fd := range h.output {
		_ = unix.Close(fd)
	}
	for _, f := range []*os.File{h.pidfd, h.console, h.stdin} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// handles are those of a pod, and what the daemon knows of exits.
type handles struct {
	mu       sync.Mutex // guards what follows
	closed   bool
	of       map[string]handle        // by container
	reported map[string]chan struct{} // closed when the daemon knows the exit of a container
}

func newHandles() *handles {
	return &handles{of: map[string]handle{}, reported: map[string]chan struct{}{}}
}

// add keeps a handle. It closes it at once if the container has one already that lacks nothing, or has ended.
func (s *handles) add(ctr string, h handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, has := s.of[ctr]
	if has && !was.lacks || s.knows(ctr) || s.closed {
		h.close()
		return
	}
	if has {
		h = was.filled(h)
	}
	if h.inputEnded && h.stdin != nil { // meanwhile
		_ = h.stdin.Close()
		h.stdin = nil
	}
	s.of[ctr] = h
}

// dropped returns what was dropped of a container's log since the last call; nothing for a container without a handle.
func (s *handles) dropped(ctr string, all Dropped) (since Dropped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, has := s.of[ctr]
	if !has || all.Bytes <= h.dropped.Bytes {
		return Dropped{}
	}
	since = Dropped{Lines: all.Lines - h.dropped.Lines, Bytes: all.Bytes - h.dropped.Bytes}
	h.dropped = all
	s.of[ctr] = h
	return since
}

// has reports whether there is a handle of a container that lacks nothing.
func (s *handles) has(ctr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, has := s.of[ctr]
	return has && !h.lacks
}

// lack reports whether a handle lacks something.
func (s *handles) lack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.of {
		if h.lacks {
			return true
		}
	}
	return false
}

// lend returns copies of what is held of a container for a monitor that takes over: the container may exit while they
// are on their way, and what was held is closed then.
func (s *handles) lend(ctr string) (fds []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of[ctr]
	for _, f := range []*os.File{h.pidfd, h.console} {
		if f == nil {
			break // a console without a process is of no use
		}
		dup, err := duplicate(f)
		if err != nil {
			closeFiles(fds)
			return nil, fmt.Errorf("copy the descriptor of %s: %w", f.Name(), err)
		}
		fds = append(fds, dup)
	}
	return fds, nil
}

// process returns a pidfd of a container's process on which process.Wait can wait, for the caller to close.
func (s *handles) process(ctr string, p Process) (*os.File, error) {
	s.mu.Lock()
	if h := s.of[ctr]; h.pidfd != nil {
		defer s.mu.Unlock()
		return pollable(h.pidfd)
	}
	s.mu.Unlock()
	return process.Open(p.PID, p.StartTime)
}

// pollable returns another descriptor of the same process. Sending a descriptor makes all of them blocking, which is
// undone here.
func pollable(f *os.File) (*os.File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	err = rc.Control(func(u uintptr) {
		if fd, dupErr = unix.FcntlInt(u, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			dupErr = unix.SetNonblock(fd, true)
		}
	})
	if err = errors.Join(err, dupErr); err != nil {
		return nil, fmt.Errorf("copy the descriptor of %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// endStdin closes the daemon's end of a container's input for good, so that the container can see its end. Of one that
// has ended nothing is noted.
func (s *handles) endStdin(ctr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, has := s.of[ctr]
	if !has {
		return
	}
	if h.stdin != nil {
		_ = h.stdin.Close()
		h.stdin = nil
	}
	h.inputEnded = true
	s.of[ctr] = h
}

// stdinEnded reports whether a container's input has ended, as far as this daemon is concerned.
func (s *handles) stdinEnded(ctr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[ctr].inputEnded
}

// report reports whether the exit of a container is still to be told, which it is not from here on.
func (s *handles) report(ctr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[ctr].close()
	delete(s.of, ctr)
	if s.knows(ctr) {
		return false
	}
	close(s.channel(ctr))
	return true
}

// exit returns a channel that is closed when the daemon knows the exit of a container.
func (s *handles) exit(ctr string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel(ctr)
}

// channel returns the channel of a container. mu is held.
func (s *handles) channel(ctr string) chan struct{} {
	c := s.reported[ctr]
	if c == nil {
		c = make(chan struct{})
		s.reported[ctr] = c
	}
	return c
}

// knows reports whether the exit of a container is known. mu is held.
func (s *handles) knows(ctr string) bool {
	select {
	case <-s.channel(ctr):
		return true
	default:
		return false
	}
}

// forget drops all that is kept of a container that is deleted.
func (s *handles) forget(ctr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[ctr].close()
	delete(s.of, ctr)
	delete(s.reported, ctr)
}

// close closes everything. What is added later is closed at once.
func (s *handles) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for ctr, h := range s.of {
		h.close()
		delete(s.of, ctr)
	}
}
