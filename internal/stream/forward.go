package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/limit"
)

// dialTimeout bounds a connection to a port. Streams beside it may wait meanwhile.
const dialTimeout = 10 * time.Second

// forwarder forwards the connections of one client.
type forwarder struct {
	*Server
	ctx   context.Context // ends with the client's connection
	conns *atomic.Int64   // that it carries
	kept  *kept           // where the library speaks
}

// dial connects to a port of a pod. done is to be called when the connection has ended.
func (f forwarder) dial(ctx context.Context, pod string, port uint16) (conn Conn, done func(), err error) {
	done = func() { f.conns.Add(-1) }
	if err = limit.ForwardedConnections.Check(f.conns.Add(1)); err == nil {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err = f.cfg.Node.Dial(ctx, pod, port)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return conn, done, nil
}

// PortForward connects a stream to a port of a pod until both directions have ended, one is reset, or the client sends
// nothing more to a pod that has ended its direction. Only a connection that could not be made is an error: of one,
// clients end all that they forward.
func (f forwarder) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	s := counted{stream.(httpstream.Stream), f.kept}
	defer f.kept.end(spdy.StreamId(s.Identifier()))
	conn, done, err := f.dial(f.ctx, pod, uint16(port))
	if err != nil {
		awaitReply(s)
		return err
	}
	defer done()
	defer conn.Close()
	stop := context.AfterFunc(f.ctx, func() { Reset(conn) })
	defer stop()
	forward(conn, s)
	return nil
}

// Reset closes a connection so that the other side sees, where it can, that it was cut off.
func Reset(conn Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// resetTime is how often it is looked whether a stream was reset whose input had ended before.
const resetTime = time.Second

// quietTime is how long a client may send nothing once the pod has ended its direction. The client of Kubernetes up to
// 1.31 ends its own only when the stream for errors has ended, and that ends when forward returns.
const quietTime = time.Second

// forward copies both ways. The end of one direction is passed on and leaves the other open; a reset ends both.
func forward(conn Conn, s counted) {
	client := &clientEnd{counted: s}
	up, down := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, client)
		up <- err
		if err != nil { // what is not read would keep the library from reading the other streams
			_, _ = io.Copy(io.Discard, s)
		}
	}()
	go func() {
		_, err := io.Copy(client, conn)
		down <- err
	}()
	tick := time.NewTicker(resetTime)
	defer tick.Stop()
	sending := true // the client has not ended its direction
	podEnded, reads := false, int64(0)
	for open := 2; open > 0; {
		select {
		case err := <-up:
			open--
			if err == nil {
				sending = false
				_ = conn.CloseWrite()
			} // else the pod does not take it, and has closed the other direction too
		case err := <-down:
			open--
			if err == nil && !(sending && isCut(conn)) {
				client.finish()
				podEnded, reads = true, client.reads.Load()
				tick.Reset(quietTime)
				break
			}
			Reset(conn)
			awaitReply(s)
			_ = s.Reset()
			return
		case <-tick.C:
			now := client.reads.Load()
			if podEnded && now == reads && waits(now) {
				_ = s.Reset() // ends the copy; the client is not told, for its stream is finished
				return
			}
			reads = now
		}
		if client.wasReset() {
			Reset(conn)
			return
		}
	}
}

// isCut reports whether the pod has cut a connection of which neither direction was ended here. What is read of it may
// end as if all had come: the kernel tells the reset once, and whoever writes may have heard of it.
func isCut(conn Conn) bool {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	info, err := infoOf(tcp)
	return err == nil && info.State == tcpClose
}

// awaitReply returns when the client has been told that it has the stream. The library does so beside us, and a stream
// that is reset before was never there for the client: it does not ask why, and goes on with what it forwards. Whatever
// is written waits for that, also nothing.
func awaitReply(s httpstream.Stream) { _, _ = s.Write(nil) }

// clientEnd is the client's end of a stream. The library does not tell the end of the input and a reset apart.
type clientEnd struct {
	counted
	finished atomic.Bool
	reads    atomic.Int64 // goes up when a read begins, and when it returns
}

// Read reads what the client sends. One goroutine reads.
func (c *clientEnd) Read(p []byte) (int, error) {
	c.reads.Add(1)
	defer c.reads.Add(1)
	return c.counted.Read(p)
}

// waits reports whether a read is under way at this count of them. If none is, what was read is on its way to the pod.
func waits(reads int64) bool { return reads%2 == 1 }

// finish says that no more will come.
func (c *clientEnd) finish() {
	c.finished.Store(true)
	_ = c.Close()
}

// wasReset reports whether the client has reset the stream, as long as we have not finished it.
func (c *clientEnd) wasReset() bool {
	if c.finished.Load() {
		return false
	}
	s, ok := c.Stream.(interface{ IsFinished() bool })
	return ok && s.IsFinished() && !c.finished.Load()
}

// Write fails when the client has reset the stream. The library sends on.
func (c *clientEnd) Write(p []byte) (int, error) {
	if c.wasReset() {
		return 0, errors.New("the client has reset the stream")
	}
	return c.Stream.Write(p)
}
