package callers

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Address is that of a client, with the process and the user that it is.
type Address struct {
	net.Addr
	PID   int32 // 0 for one whose process has no number here
	UID   uint32
	known bool  // the kernel has told them
	ours  bool  // the daemon asks itself, as its watchdog does: that is never refused
	conn  *conn // nil of a connection that is none of Listener's
}

// Listener notes of each client who it is, and closes the connections that are too many.
func (c *Callers) Listener(l net.Listener) net.Listener { return &listener{l, c} }

type listener struct {
	net.Listener
	of *Callers
}

// Accept waits for the next connection that may stay.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := &conn{Conn: raw, of: l.of}
		n.from = Address{Addr: raw.RemoteAddr(), conn: n}
		identify(raw, &n.from)
		n.from.ours = n.from.known && n.from.PID == l.of.self
		if n.from.ours {
			return n, nil
		}
		if err := l.of.connections.take(n.from.PID, 1); err != nil {
			_ = raw.Close()
			_ = l.of.refuse("connect", err)
			continue
		}
		n.counted = true
		return n, nil
	}
}

// identify asks the kernel who has connected.
func identify(raw net.Conn, a *Address) {
	u, ok := raw.(*net.UnixConn)
	if !ok {
		return
	}
	fd, err := u.SyscallConn()
	if err != nil {
		return // it has ended already
	}
	var cred *unix.Ucred
	_ = fd.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil && cred != nil {
		a.PID, a.UID, a.known = cred.Pid, cred.Uid, true
	}
}

// conn is the connection of a client.
type conn struct {
	net.Conn
	of      *Callers
	from    Address
	counted bool // it is one of the share of its process

	mu     sync.Mutex // guards what follows
	unread int64      // bytes of answers that are kept for it
	closed bool
}

// RemoteAddr says who the client is.
func (c *conn) RemoteAddr() net.Addr { return c.from }

// Close ends the connection, and with it all that it holds.
func (c *conn) Close() error {
	c.mu.Lock()
	first, unread := !c.closed, c.unread
	c.unread, c.closed = 0, true
	c.mu.Unlock()
	if first {
		c.of.answers.give(c.from.PID, unread)
	}
	if first && c.counted {
		c.of.connections.give(c.from.PID, 1)
	}
	return c.Conn.Close()
}

// keep counts n bytes that are taken for an answer already. False says that the connection is gone.
func (c *conn) keep(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.unread += n
	return true
}

// release ends what keep has begun, unless the connection's end did.
func (c *conn) release(n int64) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.unread -= n
	}
	c.mu.Unlock()
	if !closed {
		c.of.answers.give(c.from.PID, n)
	}
}
