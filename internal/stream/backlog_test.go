package stream

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// TestBacklogsOfAllSessions has one session take what is left of it: another has its own, by which all that its client
// sends is read, and more once there is more.
func TestBacklogsOfAllSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &backlogs{}
		if !all.take(limit.SessionInputs.Limit - messageBytes) {
			t.Fatal("there is no room")
		}
		size := int(limit.SessionInput.Limit)
		first, second := newInput(&backlog{of: all}), newInput(&backlog{of: all})
		sends := func(i *input) { _, _ = i.Write(make([]byte, size)) }
		keeps := func(i *input, want int) {
			t.Helper()
			if synctest.Wait(); i.waiting() != want {
				t.Errorf("%d bytes are kept, wanted %d", i.waiting(), want)
			}
		}
		go sends(first)
		keeps(first, ownBytes+messageBytes)
		go sends(second)
		keeps(second, ownBytes)
		if _, err := io.CopyN(io.Discard, second, int64(size-ownBytes/2)); err != nil {
			t.Error(err)
		}
		keeps(second, ownBytes/2)
		all.give(limit.SessionInputs.Limit - messageBytes)
		time.Sleep(retryTime)
		keeps(first, size)
		first.backlog.close()
		second.backlog.close()
		second.backlog.give(messageBytes) // by a reader that comes back late
		if all.used.Load() != 0 {
			t.Errorf("%d bytes are counted of sessions that have ended", all.used.Load())
		}
	})
}

// TestKept counts what the library has: all of a queue behind what was not read, also of streams that have ended.
func TestKept(t *testing.T) {
	k := newKept(&backlogs{})
	counts := func(want int64) {
		t.Helper()
		if k.backlog.used != want {
			t.Errorf("%d bytes are counted, wanted %d", k.backlog.used, want)
		}
	}
	k.begin(1)
	k.begin(11) // of the same queue
	k.begin(3)
	k.add(1, 100)
	k.add(11, 20)
	k.add(1, 3)
	k.add(3, 5)
	k.add(7, 1000) // nobody reads it
	counts(128)
	k.end(11)
	counts(128)
	k.sub(1, 40)
	counts(88)
	k.sub(1, 61) // of both its frames
	counts(7)
	k.sub(3, 5)
	counts(2)
	k.end(1)
	counts(0)
}

// fills sends to a stream of SPDY until nobody takes any more.
func fills(t *testing.T, c *spdyClient, s *Server, ids ...spdy.StreamId) {
	t.Helper()
	before := time.Now()
	for {
		for _, id := range ids {
			_ = c.SetWriteDeadline(time.Now().Add(timeouts.For(time.Second)))
			if err := c.WriteFrame(sends(id, 20_000)); err != nil {
				return
			}
		}
		if time.Since(before) > timeouts.For(20*time.Second) {
			t.Fatal("a session takes without an end what nobody reads")
		}
		if most := limit.SessionInput.Limit - ownBytes; s.backlogs.used.Load() > most {
			t.Fatalf("%d bytes are kept, more than %d", s.backlogs.used.Load(), most)
		}
	}
}

// TestUnreadInputOverSPDY is bounded, for a command and for the ports of a pod together, and forgotten when its client
// has gone.
func TestUnreadInputOverSPDY(t *testing.T) {
	t.Run("exec", func(t *testing.T) {
		s, d := serve(t, nil)
		c := dialSPDY(t, execs(t, s), "v4.channel.k8s.io")
		c.open(t, "error", "stdin", "stdout")
		<-d.began
		fills(t, c, s, 3)
		if s.backlogs.used.Load() == 0 {
			t.Error("what waits is not counted")
		}
		_ = c.Close()
		<-d.ended
		waitForNone(t, s)
	})
	t.Run("port-forward", func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		s, _ := serve(t, func(c *Config) {
			ports := map[int32]func(*net.TCPConn){80: func(*net.TCPConn) { <-release }}
			c.Node = pods{ports: ports, little: true}
		})
		c := dialSPDY(t, forwardsAll(t, s), "portforward.k8s.io")
		var ids []spdy.StreamId
		for id := spdy.StreamId(1); id < 21; id += 4 { // so that there is data in each queue of the library
			for i, kind := range []string{"error", "data"} {
				stream := opens(id+spdy.StreamId(2*i), "streamType", kind, "port", "80", "requestID", string(rune('a'+id)))
				if err := c.WriteFrame(stream); err != nil {
					t.Fatal(err)
				}
			}
			ids = append(ids, id+2)
		}
		fills(t, c, s, ids...)
		_ = c.Close()
		waitForNone(t, s)
	})
}

// forwardsAll is an address at which ports are forwarded.
func forwardsAll(t *testing.T, s *Server) string {
	t.Helper()
	address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{80}})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// TestSessionsGoOnWithoutRoom when others have taken all of it: what is read comes, over each transport.
func TestSessionsGoOnWithoutRoom(t *testing.T) {
	const size = 8 << 20
	got := make(chan int64, 1)
	reads := func(in io.Reader) {
		n, _ := io.CopyN(io.Discard, in, size)
		got <- n
	}
	s, _ := serve(t, func(c *Config) {
		ports := pods{ports: map[int32]func(*net.TCPConn){80: func(c *net.TCPConn) { reads(c) }}}
		c.Node = everything{ports, commands{run: func(_ context.Context, s Streams) (int, error) {
			reads(s.Stdin)
			return 0, nil
		}}}
	})
	if !s.backlogs.take(limit.SessionInputs.Limit) {
		t.Fatal("there is no room")
	}
	defer s.backlogs.give(limit.SessionInputs.Limit)
	overSPDY := func(c *spdyClient, id spdy.StreamId) {
		for range size / (32 << 10) {
			if err := c.WriteFrame(sends(id, 32<<10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	overWebSocket := func(c *websocket.Conn) {
		if err := c.WriteMessage(websocket.BinaryMessage, make([]byte, 1+size)); err != nil {
			t.Fatal(err)
		}
	}
	for name, sends := range map[string]func(t *testing.T){
		"exec over SPDY": func(t *testing.T) {
			c := dialSPDY(t, execs(t, s), "v4.channel.k8s.io")
			c.open(t, "error", "stdin", "stdout")
			overSPDY(c, 3)
		},
		"port-forward over SPDY": func(t *testing.T) {
			c := dialSPDY(t, forwardsAll(t, s), "portforward.k8s.io")
			for i, kind := range []string{"error", "data"} {
				stream := opens(spdy.StreamId(1+2*i), "streamType", kind, "port", "80", "requestID", "0")
				if err := c.WriteFrame(stream); err != nil {
					t.Fatal(err)
				}
			}
			overSPDY(c, 3)
		},
		"exec over a WebSocket": func(t *testing.T) { overWebSocket(dial(t, execs(t, s), "v5.channel.k8s.io")) },
		"port-forward over a WebSocket": func(t *testing.T) {
			overWebSocket(dial(t, forwardsAll(t, s), "v4.channel.k8s.io"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			sends(t)
			select {
			case n := <-got:
				if n != size {
					t.Errorf("%d of %d bytes come", n, size)
				}
			case <-time.After(timeouts.For(30 * time.Second)):
				t.Error("it does not go on")
			}
		})
	}
}

// everything is a node with ports and commands.
type everything struct {
	pods
	commands commands
}

func (e everything) Exec(ctx context.Context, ctr string, cmd []string, tty bool, s Streams) (int, error) {
	return e.commands.Exec(ctx, ctr, cmd, tty, s)
}
