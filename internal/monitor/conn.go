package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// errTimeout ends a request at the deadline that the daemon has set.
var errTimeout = errors.New("not done in time")

// conn is a daemon's connection. Requests under way go on when it is lost.
type conn struct {
	m    *Monitor
	f    *os.File
	gone chan struct{} // closed when the connection is lost
	mu   sync.Mutex    // guards sending
	// under way, by the request's id
	active sync.Map
}

// accept takes every connection to the listener.
func (m *Monitor) accept() {
	_ = unix.SetNonblock(m.cfg.Listener, true)
	l := os.NewFile(uintptr(m.cfg.Listener), "listener")
	rc, err := l.SyscallConn()
	if err != nil {
		logf("listen: %v", err)
		return
	}
	for {
		var fd int
		var err error
		waitErr := rc.Read(func(l uintptr) bool {
			fd, _, err = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if waitErr != nil {
			logf("accept: %v", waitErr)
			return
		}
		if err != nil {
			logf("accept: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		roomy(fd)
		go (&conn{m: m, f: os.NewFile(uintptr(fd), "daemon"), gone: make(chan struct{})}).serve()
	}
}

// largestReply has room for what a hello tells of a pod with as many containers as a pod may have, in bytes. A message
// larger than the socket's buffer cannot be sent (EMSGSIZE).
const largestReply = 1 << 20

// roomy gives a connection a buffer for the largest reply; without CAP_NET_ADMIN half of that, as far as
// net.core.wmem_max allows by default.
func roomy(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, largestReply) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, largestReply)
	}
}

func (c *conn) serve() {
	defer func() {
		close(c.gone)
		c.m.subscribers.remove(c)
		_ = c.f.Close()
	}()
	rc, err := c.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var r *wire.Request
		var fds []int
		var err error
		waitErr := rc.Read(func(fd uintptr) bool {
			r, fds, err = c.receive(int(fd))
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if waitErr == nil && err == errNoRoom {
			c.answer(r, &wire.Reply{ID: r.ID}, nil, fmt.Errorf("%s: %w", r.Op, err))
			continue
		}
		if waitErr != nil || err != nil {
			return
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		c.active.Store(r.ID, cancel) // before the next request is read, which may be to cancel this one
		go c.handle(ctx, r, fds)
	}
}

// errNoRoom is the answer to a request whose descriptors have not all come: the kernel delivers as many as this process
// has room for.
var errNoRoom = fmt.Errorf("take the descriptors that belong to it: %w", unix.EMFILE)

// receive takes one message. With errNoRoom there is a request, and no descriptor.
func (c *conn) receive(fd int) (*wire.Request, []int, error) {
	size, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	if err != nil {
		return nil, nil, err
	}
	data, oob := make([]byte, min(size, wire.MaxMessage)), make([]byte, unix.CmsgSpace(4*wire.MaxFDs))
	n, on, flags, _, err := unix.Recvmsg(fd, data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	fds := parseRights(oob[:on])
	if n == 0 || flags&unix.MSG_TRUNC != 0 {
		closeList(fds)
		return nil, nil, unix.EPIPE
	}
	r := &wire.Request{}
	if err := wire.Decode(data[:n], r); err != nil {
		closeList(fds)
		return nil, nil, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeList(fds)
		return r, nil, errNoRoom
	}
	return r, fds, nil
}

func closeList(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// send gives the daemon a message, with a descriptor beside it where fd is not below zero. It never waits: a daemon
// that does not read loses the connection.
func (c *conn) send(r *wire.Reply, fds ...int) error {
	data := wire.Encode(r)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rc, err := c.f.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = rc.Control(func(fd uintptr) {
		sendErr = unix.Sendmsg(int(fd), data, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
	if sendErr != nil {
		_ = c.f.Close()
	}
	return errors.Join(err, sendErr)
}

// answer gives the daemon the answer to a request, with descriptors that are closed then.
func (c *conn) answer(r *wire.Request, reply *wire.Reply, fds []int, err error) {
	reply.Fail(err)
	_ = c.send(reply, fds...)
	closeList(fds)
	if r.Op == wire.Shutdown && err == nil {
		c.m.ending.Do(func() { close(c.m.done) }) // not before its answer has gone
	}
	c.m.busy()
}

// cancel ends a request, once.
func (c *conn) cancel(id uint64, why error) {
	if cancel, ok := c.active.LoadAndDelete(id); ok {
		cancel.(context.CancelCauseFunc)(why)
	}
}

// within bounds a request by its time.
func within(ctx context.Context, r *wire.Request) (context.Context, context.CancelFunc) {
	if r.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, time.Duration(r.Timeout)*time.Millisecond, errTimeout)
}

// handle carries out a request, and answers it on return. It or whoever keeps them closes the descriptors in fds.
func (c *conn) handle(ctx context.Context, r *wire.Request, fds []int) (out []int, err error) {
	defer c.cancel(r.ID, nil)
	ctx, stop := within(ctx, r)
	defer stop()
	reply := &wire.Reply{ID: r.ID}
	defer func() { c.answer(r, reply, out, err) }()
	used := false
	defer func() {
		if !used {
			closeList(fds)
		}
	}()
	switch r.Op {
	case wire.Hello:
		return nil, c.hello(r, reply)
	case wire.Create:
		if r.Create == nil {
			return nil, errors.New("create: no bundle")
		}
		p, err := c.m.create(ctx, r.Container, *r.Create)
		reply.Process = &p
		return nil, err
	case wire.Cancel:
		c.cancel(r.Cancels, errors.New("the daemon has given up on it"))
		return nil, nil
	case wire.Shutdown:
		return nil, c.m.mayEnd()
	case wire.Drain:
		used = true
		reply.Full = c.m.drains.take(c.m, fds)
		return nil, nil
	}
	ctr, err := c.m.find(r.Container)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case wire.Attach, wire.Inherit, wire.Exec, wire.Session:
		used = true
	}
	return c.handleContainer(ctx, ctr, r, reply, fds)
}

// handleContainer carries out a request about one container. handle closes the descriptors in fds, except those of
// Attach, Inherit, Exec and Session.
func (c *conn) handleContainer(
	ctx context.Context, ctr *container, r *wire.Request, reply *wire.Reply, fds []int,
) (out []int, err error) {
	switch r.Op {
	case wire.Start:
		return nil, ctr.start(ctx, r.Log)
	case wire.Signal:
		return nil, ctr.first().signal(r.Signal)
	case wire.KillAll:
		return nil, ctr.first().kill()
	case wire.Exec, wire.Session:
		if grace := aloneTime(r); grace > 0 {
			var end func()
			ctx, end = c.clientLifetime(ctx, grace)
			defer end()
		}
		reply.Code, err = runExec(ctx, ctr, r.Process, r.Console, fds)
		if errors.Is(err, errTimeout) {
			reply.TimedOut, err = true, nil
		}
		return nil, err
	case wire.Attach:
		f := stdio(fds)
		return nil, ctr.out.attach(sink{stdout: f[0], stderr: f[1], notice: f[2]})
	case wire.Console:
		return ctr.terminal()
	case wire.CloseStdin:
		return nil, ctr.endStdin()
	case wire.ReopenLog:
		return nil, ctr.out.log.reopen(ctx, r.Log)
	case wire.Inherit:
		return nil, ctr.first().inherit(fds)
	case wire.Forget:
		return nil, ctr.forget()
	}
	return nil, fmt.Errorf("this monitor does not know %q", r.Op)
}

// hangupGrace is how long a session may go on once its client has gone: a shell writes its history. execGrace is the
// same for an exec without a timeout, such as a kubelet's hook, whose daemon has gone: its caller cannot end it any
// more, and it is not to go on for ever.
const (
	hangupGrace = 10 * time.Second
	execGrace   = time.Hour
)

// aloneTime is how long a process may go on once the connection is lost, 0 where its own timeout ends it.
func aloneTime(r *wire.Request) time.Duration {
	switch {
	case r.Op == wire.Session:
		return hangupGrace
	case r.Timeout <= 0:
		return execGrace
	}
	return 0
}

// clientLifetime returns a context that ends so long after the connection, and the function that releases it.
func (c *conn) clientLifetime(ctx context.Context, grace time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.gone:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(grace):
			cancel(errors.New("nobody is at its streams any more"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// stdio is a list of up to three descriptors, -1 for those that are missing.
func stdio(fds []int) [3]int {
	out := noFiles
	copy(out[:], fds)
	return out
}

// hello answers with what the monitor is and holds. Exits are told from here on, and those before are in the answer.
func (c *conn) hello(r *wire.Request, reply *wire.Reply) error {
	reply.Version, reply.PID = wire.Version, os.Getpid()
	if r.Subscribe {
		c.m.subscribers.add(c)
	}
	reply.Containers = c.m.inventory()
	return nil
}
