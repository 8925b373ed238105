package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// messageBytes is the most that a message to a client holds, after the number of its channel. Those that are not larger
// are sent as one frame: some clients do not know messages of several.
const messageBytes = 32 << 10

// numberBytes is the most that the number of a channel takes: a character of UTF-8 where messages are text.
const numberBytes = 2

// socketBytes is the buffer of a WebSocket for what it reads. Larger reads do not go through it.
const socketBytes = 4 << 10

// closeTime is how long the last frame of a connection may take that is closed for what its client did.
const closeTime = time.Second

var (
	// buffers are for what is on its way from a client to its command or pod.
	buffers = sync.Pool{New: func() any { return new([messageBytes]byte) }}
	// messageBuffers are the library's, of messages that are sent. A session without output has none.
	messageBuffers sync.Pool
)

// webSocket is the connection of a client. One goroutine reads from it; that answers pings, which never waits for the
// client to read.
type webSocket struct {
	*websocket.Conn
	raw  net.Conn               // below it
	ping atomic.Pointer[string] // that is to be answered
}

// accept makes a WebSocket out of a request, in the first of the client's protocols that is known. A client that names
// none is one of "". Clients are no browsers: wherever they come from, they are known by their token.
func accept(w http.ResponseWriter, r *http.Request, known func(protocol string) bool) (*webSocket, error) {
	asked := websocket.Subprotocols(r)
	if len(asked) == 0 {
		asked = []string{""}
	}
	i := slices.IndexFunc(asked, known)
	if i < 0 {
		http.Error(w, "none of the protocols is known", http.StatusForbidden)
		return nil, fmt.Errorf("none of the protocols %q is known", asked)
	}
	u := websocket.Upgrader{
		ReadBufferSize: socketBytes, WriteBufferSize: messageBytes + numberBytes, WriteBufferPool: &messageBuffers,
		Subprotocols: asked[i : i+1], CheckOrigin: func(*http.Request) bool { return true },
	}
	h := &hijacking{ResponseWriter: w}
	conn, err := u.Upgrade(h, r, nil)
	if err != nil {
		return nil, err
	}
	s := &webSocket{Conn: conn, raw: h.conn}
	conn.SetPingHandler(s.pinged)
	return s, nil
}

// hijacking keeps the connection that is given away. The library hides it behind one of its own where the client has
// sent something with its request.
type hijacking struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack gives the connection away.
func (h *hijacking) Hijack() (conn net.Conn, rw *bufio.ReadWriter, err error) {
	conn, rw, err = http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// pinged has a ping be answered beside the reader, which would wait for a client that does not read. The library's own
// handler gives up after a second, and all that is sent with it. Of several pings the last is answered.
func (s *webSocket) pinged(ping string) error {
	if s.ping.Swap(&ping) == nil {
		go s.pong()
	}
	return nil
}

func (s *webSocket) pong() {
	for {
		ping := s.ping.Load()
		_ = s.WriteControl(websocket.PongMessage, []byte(*ping), time.Time{})
		if s.ping.CompareAndSwap(ping, nil) {
			return
		}
	}
}

// sendClose sends the last frame by a time; none is as long as it takes.
func (s *webSocket) sendClose(code int, reason string, by time.Time) error {
	const most = 123 // RFC 6455, 5.5: 125 with the code
	return s.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason[:min(len(reason), most)]), by)
}

// byteConn is a connection whose bytes are those of the messages of a WebSocket. It has no deadlines for writing: the
// library sets its own.
type byteConn struct {
	net.Conn // below it
	socket   *webSocket
	message  io.Reader  // that is being read, of one reader
	mu       sync.Mutex // held for a message that is sent
}

// Read reads the next bytes, whatever the messages are that they come in.
func (c *byteConn) Read(p []byte) (n int, err error) {
	for {
		if c.message == nil {
			if _, c.message, err = c.socket.NextReader(); err != nil {
				return 0, endOf(err)
			}
		}
		n, err = c.message.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, endOf(err)
		}
		c.message = nil
		if n > 0 {
			return n, nil
		}
	}
}

// endOf is the end of what can be read where the client has closed its WebSocket.
func endOf(err error) error {
	var closed *websocket.CloseError
	if errors.As(err, &closed) {
		return io.EOF
	}
	return err
}

// Write sends a message.
func (c *byteConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.socket.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite says that no more will come.
func (c *byteConn) CloseWrite() error {
	err := c.socket.sendClose(websocket.CloseNormalClosure, "", time.Now().Add(closeTime))
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		err = errors.Join(err, half.CloseWrite())
	}
	return err
}

// Close ends the connection.
func (c *byteConn) Close() error {
	_ = c.CloseWrite()
	return c.Conn.Close()
}
