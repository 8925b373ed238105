package stream

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/gorilla/websocket"
	"github.com/moby/spdystream/spdy"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// TestPodsShareConnections has each pod take as many as it can: the next always has some.
func TestPodsShareConnections(t *testing.T) {
	all := &carried{}
	var taken []int64
	for _, pod := range []string{"a", "b", "c"} {
		n := int64(0)
		for all.take(pod, 2) == nil {
			n++
		}
		if err := all.take(pod, 2); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "pod "+pod+" has") {
			t.Errorf("it is refused with %v", err)
		}
		taken = append(taken, n)
	}
	most := limit.AllForwardedConnections.Limit
	if taken[0] != most/2 || taken[1] != most/4 || taken[2] != most/8 {
		t.Errorf("%v connections are taken of %d", taken, most)
	}
	if limit.ForwardedConnections.Limit > taken[0] {
		t.Errorf("one port-forward may have %d", limit.ForwardedConnections.Limit)
	}
	for i, pod := range []string{"a", "b", "c"} {
		all.give(pod, 2*taken[i])
	}
	if used := all.streams.Used(); used != 0 {
		t.Errorf("%d are left of nothing", used)
	}
}

// TestConnectionsWithoutRoom are refused when all that there may be are taken: over a WebSocket with a reason on the
// channel of the port, over SPDY with the session, which the log has.
func TestConnectionsWithoutRoom(t *testing.T) {
	s, _ := serve(t, func(c *Config) { c.Node = pods{ports: map[int32]func(*net.TCPConn){80: echoes}} })
	others := map[string]int64{}
	for i := range 20 { // each takes half of what is free
		pod := fmt.Sprint("other", i)
		for s.carried.take(pod, 1) == nil {
			others[pod]++
		}
	}
	w := dial(t, forwardsAll(t, s), "v4.channel.k8s.io")
	hears(t, w, 1, limit.AllForwardedConnections.Name)
	endsWith(t, w, websocket.CloseNormalClosure)
	c := dialSPDY(t, forwardsAll(t, s), "portforward.k8s.io")
	_ = c.SetDeadline(time.Now().Add(timeouts.For(30 * time.Second)))
	if err := c.WriteFrame(opens(1, "streamType", "error", "port", "80", "requestID", "0")); err != nil {
		t.Fatal(err)
	}
	if how := endOfStream(c, 1); how != "EOF" && !strings.Contains(how, "reset by peer") {
		t.Errorf("the session ends by %s", how)
	}
	for pod, n := range others {
		s.carried.give(pod, n)
	}
	waitForNone(t, s)

	c = dialSPDY(t, forwardsAll(t, s), "portforward.k8s.io")
	for i, kind := range []string{"error", "data"} {
		stream := opens(spdy.StreamId(1+2*i), "streamType", kind, "port", "80", "requestID", "0")
		if err := c.WriteFrame(stream); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(timeouts.For(30 * time.Second)); s.carried.budget().Used != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a connection is not counted")
		}
	}
	_ = c.Close()
	waitForNone(t, s)
}
