package stream

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/moby/spdystream/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// pending is a stream whose reply is still to be sent. A write waits for it.
type pending struct {
	httpstream.Stream
	replied chan struct{}
	waits   chan struct{}
}

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
		failed <- forwarder{s, context.Background(), &atomic.Int64{}}.PortForward(t.Context(), "p1", "", 80, p)
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
type cuts struct {
	deaf
	at net.Listener
}

func (n cuts) Dial(ctx context.Context, _ string, _ uint16) (Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.at.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

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
	n := cuts{at: l}
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
