package stream

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// spdyClient is a client of an address that speaks frames.
type spdyClient struct {
	*net.TCPConn
	*spdy.Framer
}

// dialSPDY has an address speak SPDY.
func dialSPDY(t *testing.T, address, protocol string) *spdyClient {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: %s\r\nContent-Length: 0\r\n\r\n", at.Path, protocol)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(err, resp)
	}
	f, err := spdy.NewFramer(c, in)
	if err != nil {
		t.Fatal(err)
	}
	return &spdyClient{c.(*net.TCPConn), f}
}

// open opens streams of these types, 1, 3 and so on.
func (c *spdyClient) open(t *testing.T, kinds ...string) {
	t.Helper()
	for i, kind := range kinds {
		if err := c.WriteFrame(opens(spdy.StreamId(1+2*i), "streamType", kind)); err != nil {
			t.Fatal(err)
		}
	}
}

// execs is an address at which a command can be run that has an input and an output.
func execs(t *testing.T, s *Server) string {
	t.Helper()
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// sessions is how many there are.
func (s *Server) sessions() int {
	s.tickets.mu.Lock()
	defer s.tickets.mu.Unlock()
	return s.tickets.begun
}

func waitForNone(t *testing.T, s *Server) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); s.sessions() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sessions are left", s.sessions())
		}
	}
	if n := s.backlogs.used.Load(); n != 0 {
		t.Errorf("%d bytes of their input are counted", n)
	}
	if n := s.carried.budget().Used; n != 0 {
		t.Errorf("%d of their connections are counted", n)
	}
}

// TestSessionsOfClientsThatGo has clients go while their streams are opened.
func TestSessionsOfClientsThatGo(t *testing.T) {
	s, _ := serve(t, func(c *Config) { c.Node = outputs{} })
	s.createTime = time.Second // for those whose streams came too late
	for range 20 {
		c := dialSPDY(t, execs(t, s), "v4.channel.k8s.io")
		c.open(t, "error", "stdin", "stdout")
		_ = c.Close()
	}
	waitForNone(t, s)
}

// TestRefusedSessionsEnd has a client send what is refused while its command does nothing.
func TestRefusedSessionsEnd(t *testing.T) {
	s, d := serve(t, nil)
	c := dialSPDY(t, execs(t, s), "v4.channel.k8s.io")
	c.open(t, "error", "stdin", "stdout")
	<-d.began
	c.open(t, "error")
	waitForNone(t, s)
}

// outputs is a node whose commands write something, read nothing and fail.
type outputs struct {
	deaf
	text []byte
	told chan struct{} // closed when a command has written it all; may be nil
}

func (s outputs) Exec(_ context.Context, _ string, _ []string, _ bool, to Streams) (int, error) {
	_, err := to.Stdout.Write(s.text)
	if s.told != nil {
		close(s.told)
	}
	return 7, err
}

// TestOutputIsWhole has a client send something without an end to a command that reads nothing, and read nothing until
// the command has ended: it gets all output and the exit code.
func TestOutputIsWhole(t *testing.T) {
	now := make(chan struct{})
	close(now)
	t.Run("input", func(t *testing.T) {
		bad := bytes.Repeat([]byte{0x80, 3, 0, 77}, 250) // where a reader takes it for the beginning of a frame
		outputIsWhole(t, &spdy.DataFrame{StreamId: 3, Data: bad}, func(outputs) <-chan struct{} { return now })
	})
	t.Run("pings at the end", func(t *testing.T) { // whose answers would be in the way of the output before
		outputIsWhole(t, &spdy.PingFrame{Id: 1}, func(n outputs) <-chan struct{} { return n.told })
	})
}

func outputIsWhole(t *testing.T, sends spdy.Frame, from func(outputs) <-chan struct{}) {
	n := outputs{text: bytes.Repeat([]byte("x"), 200_000), told: make(chan struct{})}
	s, _ := serve(t, func(c *Config) { c.Node = n })
	c := dialSPDY(t, execs(t, s), "v4.channel.k8s.io")
	c.open(t, "error", "stdin", "stdout")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		<-from(n)
		for c.WriteFrame(sends) == nil {
		}
	}()
	<-n.told
	time.Sleep(50 * time.Millisecond) // in which a server that does not wait for its client closes
	got, status, ended := 0, "", false
	for !ended {
		frame, err := c.ReadFrame()
		if err != nil {
			if ended = err == io.EOF; !ended {
				t.Fatalf("%d bytes and %q, then %v", got, status, err)
			}
		}
		switch f := frame.(type) {
		case *spdy.DataFrame:
			if f.StreamId == 5 {
				got += len(f.Data)
			} else {
				status += string(f.Data)
			}
		}
	}
	if got != len(n.text) || !strings.Contains(status, `"message":"7"`) {
		t.Errorf("%d of %d bytes, and how it ended is %q", got, len(n.text), status)
	}
	_ = c.Close()
	<-sent
	waitForNone(t, s)
}

// floods is a node whose commands write without an end.
type floods struct{ deaf }

func (floods) Exec(ctx context.Context, _ string, _ []string, _ bool, to Streams) (int, error) {
	for ctx.Err() == nil {
		if _, err := to.Stdout.Write(make([]byte, 32<<10)); err != nil {
			break
		}
	}
	return 0, ctx.Err()
}

// TestClientsThatDoNotRead has clients take nothing of an output that flows, over each transport: their sessions end
// when nothing has moved for long.
func TestClientsThatDoNotRead(t *testing.T) {
	s, _ := serve(t, func(c *Config) { c.Node, c.IdleTimeout = floods{}, 300*time.Millisecond })
	dialSPDY(t, execs(t, s), "v4.channel.k8s.io").open(t, "error", "stdin", "stdout")
	upgrade(t, execs(t, s))
	for s.sessions() < 2 {
		time.Sleep(time.Millisecond)
	}
	waitForNone(t, s)
}
