package stream

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// pending is a stream whose reply is still to be sent. A write waits for it.
type pending struct {
	httpstream.Stream
	replied chan struct{}
	waits   chan struct{}
}

func (pending) Identifier() uint32 { return 3 }

func (p pending) Write(b []byte) (int, error) {
	close(p.waits)
	<-p.replied
	return len(b), nil
}

// TestFailureIsToldAfterTheReply has a connection fail at once. The library resets the stream then, and of one that is
// reset before the client has it the client is told nothing.
func TestFailureIsToldAfterTheReply(t *testing.T) {
	s, _ := serve(t, nil)
	p := pending{replied: make(chan struct{}), waits: make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		f := forwarder{s, context.Background(), &atomic.Int64{}, newKept(&s.backlogs)}
		failed <- f.PortForward(t.Context(), "p1", "", 80, p)
	}()
	select {
	case <-p.waits:
	case err := <-failed:
		t.Fatalf("it failed with %v, and the client may not have the stream yet", err)
	}
	close(p.replied)
	if err := <-failed; err == nil || err.Error() != "there is no pod" {
		t.Errorf("it ended with %v", err)
	}
}

// cuts is a node whose ports read something, answer, and cut the connection.
type cuts struct{ dials }

func (n cuts) run() {
	for {
		c, err := n.at.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(c, make([]byte, 10))
		_, _ = c.Write([]byte("some"))
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// TestCutConnectionsAreReset has a pod cut a connection while a client sends to it: the stream is reset, and does not
// end as one that was complete.
func TestCutConnectionsAreReset(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := cuts{dials{at: l}}
	go n.run()
	s, _ := serve(t, func(c *Config) { c.Node = n })
	for range 20 {
		address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
		if err != nil {
			t.Fatal(err)
		}
		c := dialSPDY(t, address, "portforward.k8s.io")
		for i, kind := range []string{"error", "data"} {
			stream := opens(spdy.StreamId(1+2*i), "streamType", kind, "port", "80", "requestID", "0")
			if err := c.WriteFrame(stream); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			for c.WriteFrame(sends(3, 32<<10)) == nil {
			}
		}()
		if how := endOfStream(c, 3); how != "a reset" {
			t.Errorf("the stream ends by %s", how)
		}
		_ = c.Close()
	}
}

// endOfStream is how a stream ends that a client reads.
func endOfStream(c *spdyClient, id spdy.StreamId) string {
	for {
		frame, err := c.ReadFrame()
		switch f := frame.(type) {
		case *spdy.DataFrame:
			if f.StreamId == id && f.Flags&spdy.DataFlagFin != 0 {
				return "its last frame"
			}
		case *spdy.RstStreamFrame:
			if f.StreamId == id {
				return "a reset"
			}
		}
		if err != nil {
			return err.Error()
		}
	}
}

// dials is a node whose ports are all of one listener.
type dials struct {
	deaf
	at net.Listener
}

func (n dials) Dial(ctx context.Context, _ string, _ uint16) (Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.at.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// forwards forwards one connection to a function: stream 1 is for errors, stream 3 for data.
func forwards(t *testing.T, pod func(*net.TCPConn)) *spdyClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			pod(c.(*net.TCPConn))
			_ = c.Close()
		}
	}()
	s, _ := serve(t, func(c *Config) { c.Node = dials{at: l} })
	address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
	if err != nil {
		t.Fatal(err)
	}
	c := dialSPDY(t, address, "portforward.k8s.io")
	_ = c.SetDeadline(time.Now().Add(timeouts.For(30 * time.Second)))
	for i, kind := range []string{"error", "data"} {
		stream := opens(spdy.StreamId(1+2*i), "streamType", kind, "port", "80", "requestID", "0")
		if err := c.WriteFrame(stream); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestErrorStreamEndsAfterThePod has a pod answer and close. A client of Kubernetes up to 1.31 ends its own direction
// only when the stream for errors has ended.
func TestErrorStreamEndsAfterThePod(t *testing.T) {
	c := forwards(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("answer")) })
	if how := endOfStream(c, 3); how != "its last frame" {
		t.Errorf("the stream for data ends by %s", how)
	}
	if how := endOfStream(c, 1); how != "its last frame" {
		t.Errorf("the stream for errors ends by %s", how)
	}
}

// TestUploadAfterThePodsEnd has a pod end its direction first, and read what the client sends only a while later: it
// gets all of it.
func TestUploadAfterThePodsEnd(t *testing.T) {
	const frames, size = 400, 64 << 10 // more than what waits on the way
	ended, got := make(chan struct{}), make(chan int64, 1)
	c := forwards(t, func(c *net.TCPConn) {
		_ = c.CloseWrite()
		<-ended
		time.Sleep(3 * quietTime) // in which a server that does not look at what is on its way closes
		n, _ := io.Copy(io.Discard, c)
		got <- n
	})
	if how := endOfStream(c, 3); how != "its last frame" {
		t.Fatalf("the stream for data ends by %s", how)
	}
	close(ended)
	for range frames {
		if err := c.WriteFrame(sends(3, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WriteFrame(&spdy.DataFrame{StreamId: 3, Flags: spdy.DataFlagFin}); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n != frames*size {
		t.Errorf("the pod gets %d of %d bytes", n, frames*size)
	}
	if how := endOfStream(c, 1); how != "its last frame" {
		t.Errorf("the stream for errors ends by %s", how)
	}
}

// TestConnectionsInTurn has a client forward more connections after each other than it may have at the same time: it
// ends its streams, as kubectl does, and those for errors at once.
func TestConnectionsInTurn(t *testing.T) {
	s, _ := serve(t, func(c *Config) {
		c.Node = pods{ports: map[int32]func(*net.TCPConn){80: func(*net.TCPConn) {}}}
	})
	c := dialSPDY(t, forwardsAll(t, s), "portforward.k8s.io")
	_ = c.SetDeadline(time.Now().Add(timeouts.For(time.Minute)))
	for i := range int(limit.ForwardedConnections.Limit) + 100 {
		errs, data := spdy.StreamId(4*i+1), spdy.StreamId(4*i+3)
		for _, frame := range []spdy.Frame{
			opens(errs, "streamType", "error", "port", "80", "requestID", strconv.Itoa(i)),
			&spdy.DataFrame{StreamId: errs, Flags: spdy.DataFlagFin},
			opens(data, "streamType", "data", "port", "80", "requestID", strconv.Itoa(i)),
			&spdy.DataFrame{StreamId: data, Flags: spdy.DataFlagFin},
		} {
			if err := c.WriteFrame(frame); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		if how := endOfStream(c, errs); how != "its last frame" {
			t.Fatalf("connection %d ends by %s", i, how)
		}
	}
}
