package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/monitor/wire"
)

// client is a connection to one monitor.
type client struct {
	conn    *net.UnixConn
	silence *silence            // what it has let pass unanswered
	onOther func(r *wire.Reply) // of messages that are no answers
	onLost  func()

	sending sync.Mutex // guards writing to conn

	mu      sync.Mutex // guards what follows
	next    uint64
	waiting map[uint64]*pending
	err     error     // why the connection is lost
	closing bool      // the monitor is meant to go
	heard   time.Time // when it last said something
	pid     int
}

// answer is a reply and the descriptors beside it.
type answer struct {
	*wire.Reply
	fds []*os.File
}

// dial connects to the monitor of a run directory. The path through /proc keeps below a socket's limit of 108 bytes.
func dial(dir string) (*net.UnixConn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unixpacket", nil,
		&net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/m.sock", d.Fd()), Net: "unixpacket"})
}

func newClient(conn *net.UnixConn, silence *silence, onOther func(*wire.Reply), onLost func()) *client {
	c := &client{conn: conn, silence: silence, onOther: onOther, onLost: onLost, waiting: map[uint64]*pending{}}
	go c.read()
	return c
}

func (c *client) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// read takes replies and exits until the connection is lost.
func (c *client) read() {
	oob := make([]byte, unix.CmsgSpace(4*wire.MaxFDs))
	buf := make([]byte, 4<<10)
	for {
		n, err := peek(c.conn)
		if err == nil && n > len(buf) {
			buf = make([]byte, n)
		}
		var on int
		if err == nil {
			n, on, _, _, err = c.conn.ReadMsgUnix(buf, oob)
		}
		if err == nil && n == 0 {
			err = errors.New("the monitor has closed the connection")
		}
		if err != nil {
			c.fail(err)
			return
		}
		r := &wire.Reply{}
		fds := files(oob[:on])
		if err := json.Unmarshal(buf[:n], r); err != nil {
			closeFiles(fds)
			c.fail(fmt.Errorf("the monitor's message makes no sense: %w", err))
			return
		}
		c.take(r, fds)
	}
}

// peek waits for a message and tells its size, so that an idle connection holds no large buffer.
func peek(conn *net.UnixConn) (int, error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var peekErr error
	err = rc.Read(func(fd uintptr) bool {
		n, _, peekErr = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		return peekErr != unix.EAGAIN && peekErr != unix.EINTR
	})
	if err == nil {
		err = peekErr
	}
	return n, err
}

func (c *client) take(r *wire.Reply, fds []*os.File) {
	c.silence.end()
	c.hear()
	if r.ID == 0 {
		closeFiles(fds)
		c.onOther(r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[r.ID]
	delete(c.waiting, r.ID)
	if w == nil {
		closeFiles(fds)
		return
	}
	w.answer <- answer{r, fds}
}

// hear notes that the monitor has sent something.
func (c *client) hear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
}

// quietFor returns for how long the monitor has sent nothing.
func (c *client) quietFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.heard)
}

// serves notes which process the monitor is.
func (c *client) serves(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid = pid
}

// fail ends every call with an error.
func (c *client) fail(err error) {
	c.mu.Lock()
	c.err = err
	for _, w := range c.waiting {
		close(w.answer)
	}
	c.waiting = nil
	closing := c.closing
	c.mu.Unlock()
	_ = c.conn.Close()
	if !closing {
		c.onLost()
	}
}

// cancelGrace is how long an answer is still waited for when the context of a create, start or exec has ended: what was
// begun is to be gone when the call returns.
const cancelGrace = 5 * time.Second

// writeTimeout bounds the sending of a request. The socket has room for many, so a monitor that lets it fill up hangs.
const writeTimeout = time.Second

// quickLimit is how long to wait for what a monitor answers at once.
func (c *client) quickLimit() time.Duration {
	if since, _ := c.silence.lasts(); !since.IsZero() {
		return quickTimeout / 10
	}
	return quickTimeout
}

// call sends a request and waits for the answer.
func (c *client) call(ctx context.Context, q wire.Request, fds ...*os.File) (*wire.Reply, error) {
	a, err := c.ask(ctx, q, fds...)
	if err != nil {
		return nil, err
	}
	closeFiles(a.fds)
	return a.Reply, nil
}

// quick is call for what a monitor answers at once.
func (c *client) quick(ctx context.Context, q wire.Request, fds ...*os.File) (*wire.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.quickLimit(), errNoMonitor)
	defer cancel()
	return c.call(ctx, q, fds...)
}

// bound gives an operation its time: one that lasts takes as long as ctx lets it, and the monitor is asked meanwhile
// whether it is there; others are what it answers at once. done ends both.
func bound(ctx context.Context, c *client, op string) (within context.Context, done func()) {
	if lasting(op) {
		return ctx, c.company(ctx)
	}
	return context.WithTimeoutCause(ctx, c.quickLimit(), errNoMonitor)
}

// killed reports whether the monitor has ended without being asked to. It asks the monitor itself, because a closed
// connection is seen before the end of the process, by a writer perhaps before the reader.
func (c *client) killed(ctx context.Context) bool {
	_, err := c.quick(ctx, wire.Request{Op: wire.Hello, Version: wire.Version})
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.err != nil || unreachable(err)) && !c.closing
}

// ask is call for an answer that has descriptors beside it. It returns soon after ctx ends, whatever the monitor does.
func (c *client) ask(ctx context.Context, q wire.Request, fds ...*os.File) (answer, error) {
	w, err := c.send(q, fds)
	if err != nil {
		return answer{}, err
	}
	return w.await(ctx, c)
}

// pending is a request that was sent, and where its answer will be.
type pending struct {
	op     string
	id     uint64
	since  time.Time
	answer chan answer  // it has room for one; closed when the connection is lost
	left   *atomic.Bool // Runtime.left, see Leave; nil where that does not matter
}

// send writes a request, whose answer is to be awaited; a cancel has none.
func (c *client) send(q wire.Request, fds []*os.File) (*pending, error) {
	w := &pending{op: q.Op, since: time.Now(), answer: make(chan answer, 1)}
	if q.Op != wire.Cancel {
		if err := c.enlist(w); err != nil {
			return nil, fmt.Errorf("%s: %w", q.Op, err)
		}
		q.ID = w.id
	}
	data, err := json.Marshal(q)
	if err != nil {
		return nil, unsent(c, w, err)
	}
	var raw []int
	for _, f := range fds {
		raw = append(raw, int(f.Fd()))
	}
	var oob []byte
	if len(raw) > 0 {
		oob = unix.UnixRights(raw...)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, _, err = c.conn.WriteMsgUnix(data, oob, nil)
	if unreachable(err) {
		_ = c.conn.Close() // no other caller need wait for it, and the next try finds the monitor that comes after this one
		err = fmt.Errorf("%w: %w", errNoMonitor, err)
	}
	if err != nil {
		return nil, unsent(c, w, err)
	}
	return w, nil
}

// unsent forgets a request that could not be written.
func unsent(c *client, w *pending, err error) error {
	c.delist(w)
	return fmt.Errorf("%s: ask the pod's monitor: %w", w.op, unsentError{err})
}

// await waits for the answer to a request that c has sent.
func (w *pending) await(ctx context.Context, c *client) (answer, error) {
	defer c.delist(w)
	select {
	case a, ok := <-w.answer:
		return a.of(w.op, ok)
	case <-ctx.Done():
	}
	if goesOn(w.op) && w.left != nil && w.left.Load() {
		return answer{}, fmt.Errorf("%s: %w: %w", w.op, errLeft, context.Cause(ctx))
	}
	if lasting(w.op) { // a disk or a runtime may hold it up: whether the monitor is there, it is asked
		_, _ = c.send(wire.Request{Op: wire.Cancel, Cancels: w.id}, nil)
		late := time.AfterFunc(cancelGrace-quickTimeout, func() { _ = c.ping(context.WithoutCancel(ctx)) })
		defer late.Stop()
		select {
		case a, ok := <-w.answer:
			return a.of(w.op, ok)
		case <-time.After(cancelGrace):
		}
		return answer{}, fmt.Errorf("%s: the pod's monitor has not come to an end with it: %w", w.op, context.Cause(ctx))
	}
	if time.Since(w.since) >= quickTimeout/10 { // else it is the caller that had no time
		c.silence.begin()
	}
	return answer{}, fmt.Errorf("%s: the pod's monitor does not answer: %w", w.op, context.Cause(ctx))
}

// unreachable reports whether a request could not be written because the monitor reads no more: it has gone, or hangs.
func unreachable(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}

// of returns the answer, or the error that it carries.
func (a answer) of(op string, ok bool) (answer, error) {
	if !ok {
		return answer{}, fmt.Errorf("%s: %w", op, errLost)
	}
	if a.Error != "" {
		closeFiles(a.fds)
		return answer{}, explained(a.Failure(), a.Path)
	}
	return a, nil
}

// explained adds what is wrong with the file system of a path of which a monitor has told an error.
func explained(err error, path string) error {
	if path == "" {
		return err
	}
	return diskspace.Explain(err, filepath.Dir(path), diskspace.MakeRoom)
}

// lasting reports whether an operation may take long. It is cancelled when no caller waits for it any more.
func lasting(op string) bool { return begins(op) || op == wire.ReopenLog }

// begins reports whether an operation begins something, which must not be begun twice. When it is cancelled, that is
// undone.
func begins(op string) bool {
	return op == wire.Create || op == wire.Start || op == wire.Exec || op == wire.Session
}

// enlist numbers a request.
func (c *client) enlist(w *pending) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return unsentError{errNoMonitor}
	}
	c.next++
	w.id = c.next
	c.waiting[w.id] = w
	return nil
}

// errLost is the error of a request whose monitor ended while it worked on it: how far it came is unknown.
var errLost = fail.New(errdefs.ErrUnavailable, "the pod's monitor was lost while it worked on it")

// unsentError is the error of a request that never reached a monitor.
type unsentError struct{ err error }

func (e unsentError) Error() string { return e.err.Error() }

func (e unsentError) Unwrap() error { return e.err }

// delist forgets a request. An answer that is not taken is dropped.
func (c *client) delist(w *pending) {
	c.mu.Lock()
	delete(c.waiting, w.id)
	c.mu.Unlock()
	select {
	case a := <-w.answer:
		closeFiles(a.fds)
	default:
	}
}

// end closes the connection. No other monitor is started because of that.
func (c *client) end() {
	c.quiet()
	_ = c.conn.Close()
}

// quiet says that the connection is about to be lost, and that this is no failure.
func (c *client) quiet() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
}

func files(oob []byte) []*os.File {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var all []*os.File
	for _, m := range msgs {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			all = append(all, os.NewFile(uintptr(fd), "from the monitor"))
		}
	}
	return all
}

func closeFiles(list []*os.File) {
	for _, f := range list {
		_ = f.Close()
	}
}
