package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// listener keeps the connections that it accepted, so that they can be closed: of those that streams have taken over,
// an HTTP server knows nothing any more.
type listener struct {
	net.Listener
	idleTime time.Duration // over which a connection may carry nothing

	mu     sync.Mutex // guards what follows
	lines  map[*line]struct{}
	idle   []*line // those that use no address, the oldest first
	closed bool
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &line{TCPConn: c.(*net.TCPConn), of: l, moved: time.Now()}
	n.ctx, n.end = context.WithCancel(context.Background())
	l.mu.Lock()
	if l.lines == nil {
		l.lines = map[*line]struct{}{}
	}
	l.lines[n] = struct{}{}
	over := l.addIdle(n)
	if l.closed {
		over = n
	}
	l.mu.Unlock()
	if over != nil {
		_ = over.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer = time.AfterFunc(l.every(), n.check)
	return n, nil
}

// every is how often a connection is looked at.
func (l *listener) every() time.Duration {
	if l.idleTime == 0 {
		return checkTime
	}
	return min(checkTime, l.idleTime)
}

// addIdle puts n among the connections that use no address, and returns the one that has to go for it. A client that
// has an address uses it at once, so that the oldest is the least likely to be one. l.mu is held.
func (l *listener) addIdle(n *line) (over *line) {
	l.idle = append(l.idle, n)
	if limit.IdleConnections.Check(int64(len(l.idle))) == nil {
		return nil
	}
	over, l.idle = l.idle[0], l.idle[1:]
	return over
}

// use takes n out of the connections that may be ended for others.
func (l *listener) use(n *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeIdle(n)
}

// disuse puts n back among them, unless it has ended.
func (l *listener) disuse(n *line) {
	l.mu.Lock()
	var over *line
	if _, open := l.lines[n]; open {
		over = l.addIdle(n)
	}
	l.mu.Unlock()
	if over != nil {
		_ = over.Close()
	}
}

func (l *listener) removeIdle(n *line) {
	if i := slices.Index(l.idle, n); i >= 0 {
		l.idle = slices.Delete(l.idle, i, i+1)
	}
}

func (l *listener) closeAll() {
	l.mu.Lock()
	l.closed = true
	var all []*line
	for n := range l.lines {
		all = append(all, n)
	}
	l.mu.Unlock()
	for _, n := range all {
		_ = n.Close()
	}
}

// line is the connection of a client. Its context ends with it.
type line struct {
	*net.TCPConn
	of  *listener
	ctx context.Context
	end context.CancelFunc

	mu    sync.Mutex // guards timer
	timer *time.Timer

	// For check.
	carried uint64 // bytes that it had carried then, either way
	moved   time.Time
}

// lineKey is that of the connection in the context of a request.
type lineKey struct{}

// lineContext gives a request the context of its connection.
func lineContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	n, ok := c.(*line)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, lineKey{}, n))
	context.AfterFunc(n.ctx, cancel)
	return ctx
}

// Read notices the end of the connection. Whoever writes to it need not wait for that any more.
func (n *line) Read(p []byte) (int, error) {
	k, err := n.TCPConn.Read(p)
	if e, ok := err.(net.Error); err != nil && !(ok && e.Timeout()) {
		_ = n.Close()
	}
	return k, err
}

// Close ends the connection and its context. It may be repeated.
func (n *line) Close() error {
	n.end()
	n.of.mu.Lock()
	delete(n.of.lines, n)
	n.of.removeIdle(n)
	n.of.mu.Unlock()
	return n.TCPConn.Close()
}

// checkTime is how often a connection is looked at, at least. A client's input may wait for a process that does not
// read it; nothing reads from the connection then, and Read does not see its end. And output may wait for a client
// that does not read it, which nothing but the kernel's counters tell.
const checkTime = 5 * time.Second

// States of <linux/tcp_states.h>. TCP_CLOSE is also that of a connection that was reset. No client of ours closes one
// half of its connection; linger does, and then there is TCP_FIN_WAIT1 until the client has it, and TCP_FIN_WAIT2 until
// it closes.
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
	tcpClose       = 7
)

func (n *line) check() {
	if n.ctx.Err() != nil {
		return
	}
	if !n.alive(time.Now()) {
		_ = n.Close()
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer.Reset(n.of.every())
}

// alive reports whether the client is there, and something has moved lately. One that cannot be asked is.
func (n *line) alive(now time.Time) bool {
	info, err := infoOf(n.TCPConn)
	if err != nil {
		return !errors.Is(err, net.ErrClosed)
	}
	if carried := info.Bytes_acked + info.Bytes_received; carried != n.carried {
		n.carried, n.moved = carried, now
	}
	open := info.State == tcpEstablished || info.State == tcpFinWait1 || info.State == tcpFinWait2
	return open && (n.of.idleTime == 0 || now.Sub(n.moved) < n.of.idleTime)
}

// infoOf is what the kernel knows of a connection (tcp(7), TCP_INFO).
func infoOf(c *net.TCPConn) (info *unix.TCPInfo, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := rc.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return info, errors.Join(controlErr, err)
}
