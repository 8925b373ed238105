package stream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// exits runs a command that says something and fails.
type exits struct{ deaf }

func (exits) Exec(_ context.Context, _ string, _ []string, _ bool, s Streams) (int, error) {
	_, _ = io.WriteString(s.Stdout, "hi")
	return 3, nil
}

// commands runs a function as every command.
type commands struct {
	deaf
	run func(context.Context, Streams) (int, error)
}

func (c commands) Exec(ctx context.Context, _ string, _ []string, _ bool, s Streams) (int, error) {
	return c.run(ctx, s)
}

// echo gives its input back until it ends.
func echo(_ context.Context, s Streams) (int, error) {
	_, err := io.Copy(s.Stdout, s.Stdin)
	return 0, err
}

// dial opens a WebSocket at an address.
func dial(t *testing.T, address, protocol string) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{}
	if protocol != "" {
		d.Subprotocols = []string{protocol}
	}
	c := dialBy(t, d, address)
	if c.Subprotocol() != protocol {
		t.Fatalf("the protocol is %q, not %q", c.Subprotocol(), protocol)
	}
	return c
}

func dialBy(t *testing.T, d websocket.Dialer, address string) *websocket.Conn {
	t.Helper()
	c, resp, err := d.Dial(strings.Replace(address, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	t.Cleanup(func() { _ = c.Close() })
	by := time.Now().Add(timeouts.For(30 * time.Second))
	_, _ = c.SetReadDeadline(by), c.SetWriteDeadline(by)
	return c
}

// plays opens a command that is a function, with an input and perhaps a terminal.
func plays(t *testing.T, tty bool, run func(context.Context, Streams) (int, error)) *websocket.Conn {
	t.Helper()
	s, _ := serve(t, func(c *Config) { c.Node = commands{run: run} })
	address, err := s.Exec(&runtimeapi.ExecRequest{
		ContainerId: "c", Cmd: []string{"x"}, Stdin: true, Stdout: true, Tty: tty,
	})
	if err != nil {
		t.Fatal(err)
	}
	return dial(t, address, "v5.channel.k8s.io")
}

// says sends a message on a channel.
func says(t *testing.T, c *websocket.Conn, channel byte, data string) {
	t.Helper()
	if err := c.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...)); err != nil {
		t.Fatal(err)
	}
}

// hears reads from a channel until it has said something.
func hears(t *testing.T, c *websocket.Conn, channel byte, want string) {
	t.Helper()
	var all []byte
	for !strings.Contains(string(all), want) {
		_, message, err := c.ReadMessage()
		if err != nil {
			t.Fatalf("%.200q and %v were heard, not %q", all, err, want)
		}
		if message[0] == channel {
			all = append(all[max(0, len(all)-len(want)):], message[1:]...)
		}
	}
}

// head is that of a frame from a client, whose mask changes nothing.
func head(first byte, size int) []byte {
	h := binary.BigEndian.AppendUint64([]byte{first, 0x80 | 127}, uint64(size))
	return append(h, 0, 0, 0, 0)
}

// sendsRaw writes to the connection below a WebSocket.
func sendsRaw(t *testing.T, c *websocket.Conn, parts ...[]byte) {
	t.Helper()
	if _, err := c.NetConn().Write(bytes.Join(parts, nil)); err != nil {
		t.Fatal(err)
	}
}

// TestWebSocketProtocols has a command's output and end be told in each protocol.
func TestWebSocketProtocols(t *testing.T) {
	for protocol := range webSocketProtocols {
		t.Run(protocol, func(t *testing.T) {
			s, _ := serve(t, func(c *Config) { c.Node = exits{} })
			address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			c := dial(t, address, protocol)
			said := map[byte]string{} // by channel
			for {
				kind, message, err := c.ReadMessage()
				if err != nil {
					if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
						t.Errorf("it ended with %v", err)
					}
					break
				}
				channel, text := message[0], message[1:]
				if encoded := strings.Contains(protocol, "base64"); encoded != (kind == websocket.TextMessage) {
					t.Errorf("a message of type %d", kind)
				} else if encoded {
					channel -= '0'
					if text, err = base64.StdEncoding.DecodeString(string(text)); err != nil {
						t.Fatal(err)
					}
				}
				said[channel] += string(text)
			}
			want := `"reason":"ExitCode","message":"3"`
			if !strings.HasPrefix(protocol, "v") {
				want = "command terminated with non-zero exit code: exit code 3"
			}
			if said[1] != "hi" || !strings.Contains(said[3], want) || strings.HasPrefix(said[3], "{") != (want[0] == '"') {
				t.Errorf("%q", said)
			}
		})
	}
}

// TestInputInBase64 goes both ways, and ends the session of a client that sends something else.
func TestInputInBase64(t *testing.T) {
	s, _ := serve(t, func(c *Config) { c.Node = commands{run: echo} })
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, address, "base64.channel.k8s.io")
	for _, message := range []string{"0aGVsbG8=", "0!!!!"} {
		if err := c.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
		for got, answer := []byte(nil), "1aGVsbG8="; message == "0aGVsbG8=" && string(got) != answer; {
			if _, got, err = c.ReadMessage(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, got, err := c.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseInvalidFramePayloadData) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestUnknownProtocols are refused, also for a tunnel.
func TestUnknownProtocols(t *testing.T) {
	s, _ := serve(t, nil)
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	forward, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for address, protocol := range map[string]string{address: "v9.channel.k8s.io", forward: "SPDY/3.1+other.k8s.io"} {
		d := websocket.Dialer{Subprotocols: []string{protocol}}
		c, resp, err := d.Dial(strings.Replace(address, "http", "ws", 1), nil)
		if err == nil {
			_ = c.Close()
			t.Errorf("%s is known", protocol)
		} else if resp == nil || resp.StatusCode != 403 {
			t.Errorf("%s: %v, %v", protocol, resp, err)
		}
	}
}

// TestMessagesAreStreamed has the beginning of a large message be read before the rest of it is there.
func TestMessagesAreStreamed(t *testing.T) {
	const rest = "and the rest"
	c := plays(t, false, echo)
	sendsRaw(t, c, head(0x82, 1+5+1<<20+len(rest)), []byte("\x00begin"))
	hears(t, c, 1, "begin")
	go func() {
		_, _ = c.NetConn().Write(append(make([]byte, 1<<20), rest...))
	}()
	hears(t, c, 1, rest)
}

// TestMessagesOfSeveralFrames are put together, and a ping between them is answered.
func TestMessagesOfSeveralFrames(t *testing.T) {
	c := plays(t, false, echo)
	pong, end := "", error(nil)
	c.SetPongHandler(func(text string) error { pong = text; return end })
	sendsRaw(t, c, head(0x02, 7), []byte("\x00first "), // not the last of its message
		[]byte{0x89, 0x80 | 4, 0, 0, 0, 0}, []byte("ping"),
		head(0x00, 7), []byte("second "), head(0x80, 6), []byte("\x00third"),
		head(0x82, 5), []byte("\x00 END"))
	hears(t, c, 1, "first second \x00third END")
	if end = errors.New("the pong"); pong == "" { // it comes when it comes
		_, _, _ = c.ReadMessage()
	}
	if pong != "ping" {
		t.Errorf("the pong is %q", pong)
	}
}

// TestPingsWithoutReader are answered while a command does not read what it was sent. It reads all of that then, also
// where the client has gone meanwhile.
func TestPingsWithoutReader(t *testing.T) {
	pinged, read := make(chan struct{}), make(chan int64, 1)
	c := plays(t, false, func(_ context.Context, s Streams) (int, error) {
		<-pinged
		n, err := io.Copy(io.Discard, s.Stdin)
		read <- n
		return 0, err
	})
	input := strings.Repeat("x", int(limit.SessionInput.Limit)/2)
	says(t, c, 0, input)
	says(t, c, 0, input)
	heard := errors.New("a pong")
	c.SetPongHandler(func(string) error { return heard })
	if err := c.WriteControl(websocket.PingMessage, nil, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); !errors.Is(err, heard); {
		if _, _, err = c.ReadMessage(); err != nil && !errors.Is(err, heard) {
			t.Fatal(err)
		}
	}
	_ = c.Close()
	close(pinged)
	if n := <-read; n != limit.SessionInput.Limit {
		t.Errorf("it has read %d bytes", n)
	}
}

// TestSizes has what is no size be passed over, and nothing of it hold up the rest.
func TestSizes(t *testing.T) {
	for name, messages := range map[string][]string{
		"negative":    {`{"Width":-1,"Height":24}`},
		"too large":   {`{"Width":100000,"Height":24}`},
		"no JSON":     {`{]}`, "\x00{{{"},
		"long":        {"{" + strings.Repeat(" ", 1<<20)},
		"in parts":    {`{"Width":80,`, `"Height":24}`},
		"several":     {`{"Width":80,"Height":24}` + "\n" + `{"Width":80,"Height":25}`},
		"no terminal": {`{"Width":80,"Height":24}`, `{"Width":80,"Height":25}`},
	} {
		t.Run(name, func(t *testing.T) {
			tty := name != "no terminal"
			c := plays(t, tty, func(ctx context.Context, s Streams) (int, error) {
				for w, h, ok := uint16(0), uint16(0), tty; ok && w != 81; {
					if w, h, ok = s.Resize(); !ok || w != 81 && w != 80 {
						return 0, fmt.Errorf("a size of %d, %d, %v", w, h, ok)
					}
				}
				return echo(ctx, s)
			})
			for _, message := range append(messages, `{"Width":81,"Height":24}`) {
				says(t, c, 4, message)
			}
			says(t, c, 0, "hello")
			hears(t, c, 1, "hello")
			says(t, c, 255, "\x00") // the end of the input is that of the command
			hears(t, c, 3, `{"status":"Success"}`)
		})
	}
}

// TestSizesOfNothing do not take the place of one that nobody has asked for yet.
func TestSizesOfNothing(t *testing.T) {
	s := newSizes()
	said := `{"Width":80,"Height":24}{}{"Width":81}{"Width":0,"Height":25}`
	if _, err := s.Write([]byte(said)); err != nil {
		t.Fatal(err)
	}
	if w, h, ok := s.wait(); w != 80 || h != 24 || !ok {
		t.Errorf("a size of %d, %d, %v", w, h, ok)
	}
}

// TestTooManySizes end the session, and the client is told why.
func TestTooManySizes(t *testing.T) {
	c := plays(t, true, func(ctx context.Context, s Streams) (int, error) {
		<-ctx.Done()
		if _, _, ok := s.Resize(); ok {
			return 0, errors.New("there is a size")
		}
		return 0, ctx.Err()
	})
	says(t, c, 4, strings.Repeat(" ", int(limit.TerminalSizes.Limit)+1))
	for {
		if _, _, err := c.ReadMessage(); err != nil {
			if !websocket.IsCloseError(err, websocket.ClosePolicyViolation) ||
				!strings.Contains(err.Error(), limit.TerminalSizes.Name) {
				t.Errorf("it ended with %v", err)
			}
			return
		}
	}
}

// TestTailIsReceived by a client that reads when the command has ended, whose kernel takes little at once, and whose
// input the command does not read.
func TestTailIsReceived(t *testing.T) {
	const size = 256 << 10
	sent, ended := make(chan struct{}), make(chan struct{})
	s, _ := serve(t, func(c *Config) {
		c.Node = commands{run: func(_ context.Context, s Streams) (int, error) {
			defer close(ended)
			<-sent
			_, err := s.Stdout.Write(make([]byte, size))
			return 7, err
		}}
	})
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	little := net.Dialer{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		return errors.Join(rc.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10)
		}), err)
	}}
	d := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}, NetDialContext: little.DialContext}
	c := dialBy(t, d, address)
	for range 5 {
		says(t, c, 0, strings.Repeat("x", 16<<10))
	}
	close(sent)
	select {
	case <-ended:
	case <-time.After(time.Second): // this kernel does not take it all
	}
	var n int
	var last []byte
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("it ended with %v", err)
			}
			break
		}
		if message[0] == 1 {
			n += len(message) - 1
		}
		if len(message) > 1+messageBytes {
			t.Errorf("a message of %d bytes", len(message))
		}
		last = message
	}
	if n != size || !strings.Contains(string(last), `"message":"7"`) {
		t.Errorf("%d of %d bytes were received, and %.100q at last", n, size, last)
	}
}

// TestIdleWebSockets end when nothing goes over them.
func TestIdleWebSockets(t *testing.T) {
	s, d := serve(t, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
	address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	dial(t, address, "")
	<-d.began
	<-d.ended
}
