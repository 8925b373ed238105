package stream

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// listener keeps the connections that it accepted, so that they can be closed: of those that streams have taken over, an HTTP
// server knows nothing any more.
type listener struct {
	net.Listener

	mu     sync.Mutex // guards what follows
	lines  map[*line]struct{}
	closed bool
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &line{TCPConn: c.(*net.TCPConn), of: l}
	n.ctx, n.end = context.WithCancel(context.Background())
	l.mu.Lock()
	if l.lines == nil {
		l.lines = map[*line]struct{}{}
	}
	l.lines[n] = struct{}{}
	closed := l.closed
	l.mu.Unlock()
	if closed {
		_ = n.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer = time.AfterFunc(checkTime, n.check)
	return n, nil
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
}

// lineContext gives a request the context of its connection.
func lineContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	n, ok := c.(*line)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
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
	n.of.mu.Unlock()
	return n.TCPConn.Close()
}

// checkTime is how often a connection is looked at. A client's input may wait for a process that does not read it; nobody reads
// from the connection then, and Read does not see its end.
const checkTime = 5 * time.Second

// tcpEstablished is TCP_ESTABLISHED of <linux/tcp_states.h>. No client of ours closes one half of its connection.
const tcpEstablished = 1

func (n *line) check() {
	if n.ctx.Err() != nil {
		return
	}
	open := false
	if rc, err := n.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			open = err != nil || info.State == tcpEstablished
		})
	}
	if !open {
		_ = n.Close()
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer.Reset(checkTime)
}
