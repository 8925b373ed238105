package crio

import (
	"io"
	"net"
	"sync"
	"time"

	"berth/internal/listen"
)

// mux tells connections apart by how they begin: gRPC is HTTP/2, whose preface begins with "PRI".
type mux struct {
	from     net.Listener
	rpc, web *branch
	closing  sync.Once
	closed   chan struct{}
}

// firstBytes is how long a client may take for the first of them.
const firstBytes = 10 * time.Second

func newMux(l net.Listener) *mux {
	m := &mux{from: listen.Lasting{Listener: l}, closed: make(chan struct{})}
	m.rpc, m.web = newBranch(m), newBranch(m)
	return m
}

// run accepts until the listener fails or the mux is closed.
func (m *mux) run() error {
	defer m.close()
	for {
		c, err := m.from.Accept()
		if err != nil {
			return err
		}
		go m.sort(c)
	}
}

func (m *mux) sort(c net.Conn) {
	begun := make([]byte, len("PRI"))
	_ = c.SetReadDeadline(time.Now().Add(firstBytes))
	if _, err := io.ReadFull(c, begun); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	to := m.web
	if string(begun) == "PRI" {
		to = m.rpc
	}
	select {
	case to.conns <- &begunConn{c, begun}:
	case <-to.closed:
		_ = c.Close()
	case <-m.closed:
		_ = c.Close()
	}
}

func (m *mux) close() {
	m.closing.Do(func() {
		close(m.closed)
		_ = m.from.Close()
	})
}

// branch is the listener of one kind. The mux outlives it.
type branch struct {
	of      *mux
	conns   chan net.Conn
	closing sync.Once
	closed  chan struct{}
}

func newBranch(m *mux) *branch {
	return &branch{of: m, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closed:
	case <-b.of.closed:
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (b *branch) Close() error {
	b.closing.Do(func() { close(b.closed) })
	return nil
}

// Addr implements net.Listener.
func (b *branch) Addr() net.Addr { return b.of.from.Addr() }

// begunConn is a connection of which the first bytes were read.
type begunConn struct {
	net.Conn
	begun []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.begun) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.begun)
	c.begun = c.begun[n:]
	return n, nil
}
