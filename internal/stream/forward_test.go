package stream

import (
	"context"
	"sync/atomic"
	"testing"

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
