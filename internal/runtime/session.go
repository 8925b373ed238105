package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/internal/pipe"
)

// Session is a process in a running container whose streams are a client's. Where Process has a terminal, Stderr is not
// used.
type Session struct {
	Process        *specs.Process
	Stdin          io.Reader // nil: no input
	Stdout, Stderr io.Writer // nil: not wanted
	// Resize waits for the next size of the terminal, in characters; false is that there will be none. It may be nil.
	Resize func() (width, height uint16, ok bool)
}

// hangupGrace is how long a process may go on once its client has gone: a shell writes its history.
const hangupGrace = 10 * time.Second

// drainTime is how long output is still waited for once the process has ended: a child may hold its streams open. What
// is there by then is delivered, however slow the client.
const drainTime = 2 * time.Second

// Session runs a process in a container until it ends, and returns its exit code (128+n where signal n ended it). When
// ctx ends first, the client is gone: the process sees the end of its input and nobody reading, or the hang-up of its
// terminal, and a while later what is left of it is killed. The same happens when this daemon dies. A Read or Write of
// the caller's streams may still be under way then, and ends with them.
func (r *Runtime) Session(ctx context.Context, pod, ctr string, s Session) (code int, err error) {
	name, remove, err := r.cfg.processFile(pod, ctr, s.Process)
	if err != nil {
		return 0, err
	}
	defer remove()
	q := wire.Request{Op: wire.Session, Container: ctr, Process: name}
	e := &ends{drain: func(f *os.File) { r.drains.take(ctx, pod, ctr, f) }}
	defer e.hangUp()
	if s.Process.Terminal {
		q.Console, err = e.listen(r.cfg.bundle(pod, ctr), name)
	} else {
		err = e.pipes(s)
	}
	if err != nil {
		closeFiles(e.theirs)
		return 0, fmt.Errorf("open the streams of the command: %w", err)
	}
	work, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	type answer struct {
		code int
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		// Not before it is sent: a closed file's number may be another file's. And not later: while this process has the
		// other end of its input, nothing tells that the command has closed it.
		give := sync.OnceFunc(func() { closeFiles(e.theirs) })
		reply, err := callWhenSent(work, r, pod, q, give, e.theirs...)
		give()
		if err != nil {
			answered <- answer{err: err}
			return
		}
		answered <- answer{code: reply.Code}
	}()
	if e.listener != nil {
		go e.terminal(s)
	}
	select {
	case a := <-answered:
		if a.err != nil {
			return 0, a.err
		}
		return a.code, e.deliver(ctx)
	case <-ctx.Done():
	}
	e.hangUp()
	select {
	case <-answered:
	case <-time.After(hangupGrace):
		giveUp(errors.New("its client has gone"))
		<-answered
	}
	return 0, context.Cause(ctx)
}

// ends are the daemon's ends of a session's streams.
type ends struct {
	theirs   []*os.File // stdin, stdout, stderr of the process; none with a terminal. Open until they are sent
	listener *net.UnixListener
	socket   string         // the listener's
	taken    chan struct{}  // closed when the listener has had its message, or failed
	copies   sync.WaitGroup // from the process to the client
	drain    func(*os.File) // reads on where a process that was left holds the other end

	mu     sync.Mutex // guards what follows
	ours   []*os.File
	outs   []*os.File    // those of ours that are read
	sender *net.UnixConn // on which the runtime sends the master
	due    time.Time     // by when it has sent it; zero while it works
	over   bool          // the process has ended
	closed bool
}

// hold keeps a file until the end, which may have come.
func (e *ends) hold(f *os.File) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = f.Close()
		return false
	}
	e.ours = append(e.ours, f)
	return true
}

// hangUp closes the daemon's ends. It may be repeated.
func (e *ends) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	closeFiles(e.ours)
	if e.listener != nil {
		_ = e.listener.Close()
		_ = os.Remove(e.socket)
	}
	if e.sender != nil {
		_ = e.sender.Close()
	}
}

// pipes makes the streams of a process without a terminal.
func (e *ends) pipes(s Session) error {
	if s.Stdin == nil {
		if err := e.nothing(); err != nil {
			return err
		}
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		e.theirs = append(e.theirs, r)
		e.hold(w)
		go func() {
			_, err := io.Copy(w, s.Stdin)
			_ = w.Close()
			if err != nil {
				discard(s.Stdin)
			}
		}()
	}
	for _, client := range []io.Writer{s.Stdout, s.Stderr} {
		if client == nil {
			if err := e.nothing(); err != nil {
				return err
			}
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		e.theirs = append(e.theirs, w)
		e.hold(r)
		e.read(r, client)
	}
	return nil
}

// nothing is a stream that the client does not want.
func (e *ends) nothing() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		e.theirs = append(e.theirs, null)
	}
	return err
}

// listen waits for the master of a terminal, which the runtime sends. The socket is named after the process's file.
func (e *ends) listen(dir, name string) (string, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer d.Close()
	name = name[:len(name)-len(filepath.Ext(name))] + ".tty"
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name) // the whole path may be too long for a socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return "", err
	}
	l.SetUnlinkOnClose(false) // the short name means something else by then
	e.listener, e.socket, e.taken = l, filepath.Join(dir, name), make(chan struct{})
	return name, nil
}

// terminal takes the master and copies to and from it.
func (e *ends) terminal(s Session) {
	defer close(e.taken)
	f, err := e.master()
	if err != nil || !e.hold(f) {
		return // the runtime has failed, which its own error tells
	}
	if s.Stdin != nil {
		go func() {
			if _, err := io.Copy(f, s.Stdin); err != nil {
				discard(s.Stdin)
				return
			}
			_, _ = f.Write([]byte{4}) // end of transmission, as a person would type it
		}()
	}
	if s.Resize != nil {
		go func() {
			for width, height, ok := s.Resize(); ok; width, height, ok = s.Resize() {
				_ = setSize(f, width, height)
			}
		}()
	}
	w := s.Stdout
	if w == nil {
		w = io.Discard
	}
	e.read(f, w)
}

// masterTimeout bounds the wait for a master whose runtime has returned. One that still works may take as long as it
// needs between its call and its message: on a busy node it makes the whole process in between.
const masterTimeout = 5 * time.Second

// master is the terminal's, as the runtime sends it.
func (e *ends) master() (*os.File, error) {
	conn, err := e.listener.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	e.mu.Lock()
	e.sender = conn
	_ = conn.SetReadDeadline(e.due)
	if e.closed {
		_ = conn.Close()
	}
	e.mu.Unlock()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 4096), oob)
	if err != nil {
		return nil, err
	}
	fds := files(oob[:n])
	defer closeFiles(fds)
	if len(fds) != 1 {
		return nil, fmt.Errorf("the runtime sent %d descriptors for a terminal", len(fds))
	}
	fd, err := unix.FcntlInt(fds[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// read copies what the process writes to the client. When the client does not take it, the process sees that nobody
// reads.
func (e *ends) read(f *os.File, w io.Writer) {
	e.mu.Lock()
	e.outs = append(e.outs, f)
	e.mu.Unlock()
	e.copies.Go(func() {
		_, _ = pipe.Copy(w, f)
		e.mu.Lock()
		over := e.over
		e.mu.Unlock()
		if over && e.listener == nil && hasWriter(f) {
			e.drain(f)
		}
		_ = f.Close()
	})
}

// deliver delivers the output of a process that has ended.
func (e *ends) deliver(ctx context.Context) error {
	if e.listener != nil {
		e.mu.Lock()
		e.due = time.Now().Add(masterTimeout) // the runtime has sent it before it returned
		_ = e.listener.SetDeadline(e.due)
		if e.sender != nil {
			_ = e.sender.SetReadDeadline(e.due)
		}
		e.mu.Unlock()
		<-e.taken
	}
	e.mu.Lock()
	e.over = true
	for _, f := range e.outs {
		_ = f.SetReadDeadline(time.Now().Add(drainTime))
	}
	e.mu.Unlock()
	delivered := make(chan struct{})
	go func() { e.copies.Wait(); close(delivered) }()
	select {
	case <-delivered:
		return nil
	case <-ctx.Done():
	}
	if e.listener == nil { // the client has gone, and a process that was left may still write
		e.mu.Lock()
		outs := e.outs
		e.mu.Unlock()
		for _, f := range outs {
			if hasWriter(f) {
				e.drain(f)
			}
		}
	}
	return context.Cause(ctx)
}
