package stream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/test/timeouts"
)

// pods is a node whose ports are functions.
type pods struct {
	deaf
	ports  map[int32]func(*net.TCPConn)
	little bool // the kernel keeps little of what they do not read
}

func (n pods) Dial(ctx context.Context, _ string, port uint16) (Conn, error) {
	serve, ok := n.ports[int32(port)]
	if !ok {
		return nil, errors.New("nobody listens")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	pod, err := l.Accept()
	if err != nil {
		return nil, err
	}
	if n.little {
		_, _ = c.(*net.TCPConn).SetWriteBuffer(16<<10), pod.(*net.TCPConn).SetReadBuffer(16<<10)
	}
	go func() {
		serve(pod.(*net.TCPConn))
		_ = pod.Close()
	}()
	return c.(*net.TCPConn), nil
}

// echoes is a port that gives back what comes.
func echoes(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// forwardsPorts forwards ports that are functions over a WebSocket, in the order of their numbers.
func forwardsPorts(t *testing.T, protocol string, ports map[int32]func(*net.TCPConn)) (*Server, *websocket.Conn) {
	t.Helper()
	return pods{ports: ports}.forwards(t, protocol)
}

func (n pods) forwards(t *testing.T, protocol string) (*Server, *websocket.Conn) {
	t.Helper()
	s, _ := serve(t, func(c *Config) { c.Node = n })
	req := &runtimeapi.PortForwardRequest{PodSandboxId: "p"}
	for port := range n.ports {
		req.Port = append(req.Port, port)
	}
	slices.Sort(req.Port)
	address, err := s.PortForward(req)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, address, protocol)
	encoded := strings.Contains(protocol, "base64")
	for i, port := range req.Port {
		for channel := 2 * i; channel < 2*i+2; channel++ {
			want := []byte{byte(channel), byte(port), byte(port >> 8)}
			if encoded {
				want = append([]byte(string(rune(byte('0'+channel)))), base64.StdEncoding.EncodeToString(want[1:])...)
			}
			kind, message, err := c.ReadMessage()
			if err != nil || !bytes.Equal(message, want) || encoded != (kind == websocket.TextMessage) {
				t.Fatalf("channel %d begins with %q of the kind %d, not with %q: %v", channel, message, kind, want, err)
			}
		}
	}
	return s, c
}

// endsWith reads until the session ends, closes the connection, and returns what has come meanwhile.
func endsWith(t *testing.T, c *websocket.Conn, code int) (messages []string) {
	t.Helper()
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, code) {
				t.Errorf("it ended with %v, not with code %d, after %.200q", err, code, messages)
			}
			_ = c.Close()
			return messages
		}
		messages = append(messages, string(message))
	}
}

// TestPortsOverWebSockets forwards two ports in each protocol.
func TestPortsOverWebSockets(t *testing.T) {
	for _, protocol := range []string{"v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""} {
		t.Run(protocol, func(t *testing.T) {
			ended := make(chan error, 2)
			port := func(prefix string) func(*net.TCPConn) {
				return func(c *net.TCPConn) {
					_, _ = c.Write([]byte(prefix))
					_, err := io.Copy(c, c)
					ended <- err
				}
			}
			s, c := forwardsPorts(t, protocol, map[int32]func(*net.TCPConn){80: port("a"), 8080: port("b")})
			for channel, text := range map[byte]string{0: "hello", 2: "world"} {
				kind, message := websocket.BinaryMessage, string(rune(channel))+text
				if strings.Contains(protocol, "base64") {
					kind = websocket.TextMessage
					message = string(rune('0'+channel)) + base64.StdEncoding.EncodeToString([]byte(text))
				}
				if err := c.WriteMessage(kind, []byte(message)); err != nil {
					t.Fatal(err)
				}
			}
			said := map[byte]string{}
			for len(said[0])+len(said[2]) < len("ahello")+len("bworld") {
				_, message, err := c.ReadMessage()
				if err != nil {
					t.Fatalf("%v after %q", err, said)
				}
				channel, text := message[0], message[1:]
				if strings.Contains(protocol, "base64") {
					channel -= '0'
					if text, err = base64.StdEncoding.DecodeString(string(text)); err != nil {
						t.Fatal(err)
					}
				}
				said[channel] += string(text)
			}
			if len(said) != 2 || said[0] != "ahello" || said[2] != "bworld" {
				t.Errorf("%q", said)
			}
			goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			if err := c.WriteControl(websocket.CloseMessage, goodbye, time.Time{}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := <-ended; err != nil {
					t.Errorf("the end of a client that has said goodbye is %v for the pod", err)
				}
			}
			endsWith(t, c, websocket.CloseNormalClosure)
			waitForNone(t, s)
		})
	}
}

// TestPortWhereNobodyListens has its error told on its channel, and the other port be forwarded.
func TestPortWhereNobodyListens(t *testing.T) {
	ended := make(chan struct{})
	s, _ := serve(t, func(c *Config) {
		c.Node = pods{ports: map[int32]func(*net.TCPConn){81: func(c *net.TCPConn) {
			<-ended
			_, _ = c.Write([]byte("there"))
		}}}
	})
	address, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{80, 81}})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, address, "v4.channel.k8s.io")
	hears(t, c, 1, "P\x00error forwarding port 80 to pod p, uid : nobody listens")
	close(ended)
	if got := endsWith(t, c, websocket.CloseNormalClosure); !slices.Equal(got, []string{"\x02there"}) {
		t.Errorf("%q", got)
	}
	waitForNone(t, s)
}

// TestManyPortsOverAWebSocket forwards as many ports as there are channels.
func TestManyPortsOverAWebSocket(t *testing.T) {
	for _, protocol := range []string{"v4.channel.k8s.io", "v4.base64.channel.k8s.io"} {
		ports := map[int32]func(*net.TCPConn){}
		for i := range int32(limit.ForwardedPorts.Limit) {
			ports[1000+i] = func(c *net.TCPConn) {}
		}
		s, c := forwardsPorts(t, protocol, ports)
		endsWith(t, c, websocket.CloseNormalClosure)
		waitForNone(t, s)
	}
}

// TestPortsThatDoNotRead have little of what their clients send be kept, however large its messages are.
func TestPortsThatDoNotRead(t *testing.T) {
	release := make(chan struct{})
	ports := map[int32]func(*net.TCPConn){80: func(*net.TCPConn) { <-release }}
	s, c := pods{ports: ports, little: true}.forwards(t, "v4.channel.k8s.io")
	const size = 32 << 20
	var sent atomic.Int64
	written := make(chan error, 1)
	go func() {
		conn, part := c.NetConn(), make([]byte, 64<<10)
		_, err := conn.Write(head(0x82, size))
		for err == nil && sent.Load() < size {
			_, err = conn.Write(part)
			sent.Add(int64(len(part)))
		}
		written <- err
	}()
	for before := int64(-1); before != sent.Load(); time.Sleep(timeouts.For(500 * time.Millisecond)) {
		before = sent.Load()
	}
	// The kernel has up to 6 MiB of the client's connection as what came, and 4 MiB as what is to be sent.
	if n := sent.Load(); n >= size/2 {
		t.Errorf("%d bytes of a message are taken that nobody reads", n)
	}
	close(release)
	if err := <-written; err != nil {
		t.Errorf("the client cannot go on when its pod has gone: %v", err)
	}
	endsWith(t, c, websocket.CloseNormalClosure)
	waitForNone(t, s)
}

// TestPingsWhilePortsDoNotRead are answered, also in the middle of a message.
func TestPingsWhilePortsDoNotRead(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	ports := map[int32]func(*net.TCPConn){80: func(*net.TCPConn) { <-release }}
	_, c := pods{ports: ports, little: true}.forwards(t, "v4.channel.k8s.io")
	sendsRaw(t, c, head(0x02, 1+100<<10), make([]byte, 1+100<<10), // not the last of its message
		[]byte{0x89, 0x80 | 4, 0, 0, 0, 0}, []byte("ping"))
	ponged := errors.New("the pong")
	c.SetPongHandler(func(string) error { return ponged })
	if _, message, err := c.ReadMessage(); !errors.Is(err, ponged) {
		t.Errorf("%.100q, %v instead of a pong", message, err)
	}
}

// TestPortsGetWhatTheirClientsSend as messages of several frames, and nothing of other channels.
func TestPortsGetWhatTheirClientsSend(t *testing.T) {
	_, c := forwardsPorts(t, "v4.channel.k8s.io", map[int32]func(*net.TCPConn){80: echoes, 81: echoes})
	sendsRaw(t, c, head(0x02, 7), []byte("\x00first "), head(0x00, 7), []byte("\x02second"),
		head(0x80, 6), []byte("\x04third"))
	for _, channel := range []byte{1, 3, 4, 5, 200, 255} { // for errors, of no port, and what ends a channel of a command
		says(t, c, channel, "\x00")
	}
	says(t, c, 0, "")
	sendsRaw(t, c, []byte{0x82, 0x80, 0, 0, 0, 0}) // a message without a channel
	says(t, c, 0, "END")
	hears(t, c, 0, "first \x02second\x04thirdEND")
	for _, text := range []string{"P", "\x51\x00"} { // what a port begins with is the server's to say, this is data
		says(t, c, 2, text)
		hears(t, c, 2, text)
	}
}

// TestPortsThatEnd hold up no other: what is sent to them is thrown away.
func TestPortsThatEnd(t *testing.T) {
	ended := make(chan struct{})
	_, c := forwardsPorts(t, "", map[int32]func(*net.TCPConn){
		80: func(c *net.TCPConn) { close(ended) }, 81: echoes,
	})
	<-ended
	for range 4 {
		says(t, c, 0, strings.Repeat("x", int(limit.SessionInput.Limit)))
	}
	says(t, c, 2, "hello")
	hears(t, c, 2, "hello")
}

// TestTailOfAPortIsReceived by a client that still sends when the pod has written all and ended.
func TestTailOfAPortIsReceived(t *testing.T) {
	const size = 2 << 20
	s, c := forwardsPorts(t, "v4.channel.k8s.io", map[int32]func(*net.TCPConn){80: func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}})
	go func() {
		for c.WriteMessage(websocket.BinaryMessage, make([]byte, 16<<10)) == nil {
		}
	}()
	time.Sleep(100 * time.Millisecond) // in which a server that does not wait for its client closes
	n := 0
	for _, message := range endsWith(t, c, websocket.CloseNormalClosure) {
		if n += len(message) - 1; len(message) > 1+messageBytes {
			t.Errorf("a message of %d bytes", len(message))
		}
	}
	if n != size {
		t.Errorf("%d of %d bytes were received", n, size)
	}
	waitForNone(t, s)
}

// TestClientsOfPortsThatGo without a word cut what they send; those who say goodbye end it.
func TestClientsOfPortsThatGo(t *testing.T) {
	const size = 512 << 10
	for name, c := range map[string]struct {
		goes  func(*websocket.Conn)
		whole bool
	}{
		"without a word": {func(c *websocket.Conn) { _ = c.Close() }, false},
		"in a message":   {func(c *websocket.Conn) { _, _ = c.NetConn().Write(head(0x82, 100)); _ = c.Close() }, false},
		"with a goodbye": {func(c *websocket.Conn) {
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseGoingAway, ""), time.Time{})
			endsWith(t, c, websocket.CloseGoingAway) // which answers it
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			type end struct {
				n   int64
				err error
			}
			began, reads, ends := make(chan struct{}), make(chan struct{}), make(chan end, 1)
			s, client := forwardsPorts(t, "v4.channel.k8s.io", map[int32]func(*net.TCPConn){80: func(c *net.TCPConn) {
				close(began)
				<-reads
				_, wrote := c.Write([]byte("which nobody takes any more"))
				n, err := io.Copy(io.Discard, c)
				ends <- end{n, errors.Join(wrote, err)}
			}})
			<-began
			says(t, client, 0, strings.Repeat("x", size))
			c.goes(client)
			if !c.whole {
				waitForNone(t, s) // also where the pod reads nothing
			}
			close(reads)
			got := <-ends
			if c.whole && (got.n != size || got.err != nil) {
				t.Errorf("the pod has %d of %d bytes, and the end is %v", got.n, size, got.err)
			}
			if !c.whole && !errors.Is(got.err, syscall.ECONNRESET) && !errors.Is(got.err, syscall.EPIPE) {
				t.Errorf("the end is %v for the pod, after %d of %d bytes", got.err, got.n, size)
			}
			waitForNone(t, s)
		})
	}
}

// TestPortsInBrokenBase64 end the session, which is no end of what was sent.
func TestPortsInBrokenBase64(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	s, c := forwardsPorts(t, "v4.base64.channel.k8s.io", map[int32]func(*net.TCPConn){80: func(c *net.TCPConn) {
		close(began)
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}})
	<-began
	if err := c.WriteMessage(websocket.TextMessage, []byte("0!!!!")); err != nil {
		t.Fatal(err)
	}
	endsWith(t, c, websocket.CloseInvalidFramePayloadData)
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the end is %v for the pod", err)
	}
	waitForNone(t, s)
}
