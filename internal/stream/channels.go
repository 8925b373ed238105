package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/internal/limit"
)

// channels are the streams of a session in one WebSocket. The first byte of a message says of which it is.
type channels struct {
	socket  *webSocket
	base64  bool // messages are text, with a character for the channel
	closes  bool // a client can end a channel
	backlog *backlog

	// Set before serve.
	to     map[byte]receiver // where what comes on a channel goes; what has no place goes nowhere
	inputs []*input          // those of them that somebody reads
	gone   func()            // is called when the client has gone without a word, or is sent away. It may be repeated

	received chan bool // whether the client is still there when nothing more is received
	stopping atomic.Bool

	mu sync.Mutex // held for a message that is sent
}

// receiver takes what comes on a channel. A Write that fails ends the session.
type receiver interface {
	io.Writer
	// finish says that no more will come. It may be repeated.
	finish()
}

func newChannels(s *webSocket, base64 bool, of *backlogs) *channels {
	return &channels{
		socket: s, base64: base64, backlog: &backlog{of: of}, to: map[byte]receiver{}, gone: func() {},
		received: make(chan bool, 1),
	}
}

// input makes a channel one of which somebody reads what the client sends.
func (c *channels) input(channel byte) *input {
	in := newInput(c.backlog)
	c.to[channel] = in
	c.inputs = append(c.inputs, in)
	return in
}

// inputTime is how long may be taken to read what a client has sent that has gone.
const inputTime = 2 * time.Second

// serve receives from the client until end is called. The context that it returns ends when the client goes away, or is
// sent away for what it has sent.
func (c *channels) serve(r *http.Request, log *slog.Logger) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(r.Context(), c.gone) // also while an input waits for its reader
	go func() {
		err := c.receive()
		var did *breach
		broken := errors.As(err, &did)
		var told error
		switch {
		case broken: // before the session learns that its input has ended: it may end by that, which closes as usual
			log.Warn("a session of a client is ended for what it has sent", "client", r.RemoteAddr, "error", err)
			told = c.socket.sendClose(did.code, err.Error(), time.Now().Add(closeTime))
			c.gone()
		case errors.Is(err, errEnded):
		case saidGoodbye(err):
			stop()
		default:
			c.gone()
		}
		for _, to := range c.to {
			to.finish()
		}
		switch {
		case errors.Is(err, errEnded):
			c.received <- true
		case broken:
			if told != nil {
				_ = c.socket.Close()
			}
			cancel()
			c.received <- told == nil
		default:
			_ = c.socket.Close()
			c.awaitRead()
			cancel()
			c.received <- false
		}
	}()
	return ctx, func() {
		defer cancel()
		defer stop()
		defer c.backlog.close()
		c.end(r)
	}
}

// saidGoodbye reports whether a client has closed its WebSocket before its connection.
func saidGoodbye(err error) bool {
	var closed *websocket.CloseError
	return errors.As(err, &closed) && closed.Code != websocket.CloseAbnormalClosure
}

// awaitRead returns when all that has come was read, or after inputTime.
func (c *channels) awaitRead() {
	by := time.Now().Add(inputTime)
	for _, in := range c.inputs {
		in.awaitRead(time.Until(by))
	}
}

// end ends the connection when all is sent. What the client still sends is thrown away: on a connection that is closed
// with something unread the kernel throws away what the client has not received.
func (c *channels) end(r *http.Request) {
	c.mu.Lock() // what comes later finds the connection ended
	_ = c.socket.sendClose(websocket.CloseNormalClosure, "", time.Time{})
	c.mu.Unlock()
	c.stopping.Store(true)
	_ = c.socket.raw.SetReadDeadline(time.Unix(0, 1))
	if <-c.received {
		_ = c.socket.raw.SetReadDeadline(time.Time{})
		linger(r, c.socket.raw)
	}
	_ = c.socket.Close()
}

// errEnded says that the session has ended by itself.
var errEnded = errors.New("the session has ended")

// breach is what a client has sent that ends its session, with the code that tells it so.
type breach struct {
	code int
	err  error
}

func (b *breach) Error() string { return b.err.Error() }
func (b *breach) Unwrap() error { return b.err }

// receive passes on what the client sends until it closes the connection, the session has ended, or it does what it
// must not.
func (c *channels) receive() error {
	for {
		_, message, err := c.socket.NextReader()
		if err == nil {
			err = c.take(message)
		} else if c.stopping.Load() {
			err = c.stopped(err)
		}
		if err != nil {
			return err
		}
	}
}

// stopped tells whether it was the end of the session that ended a read, and not the client.
func (c *channels) stopped(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errEnded
	}
	return err
}

// take passes one message on. That reading from the connection failed is for the next one to tell.
func (c *channels) take(message io.Reader) error {
	var first [1]byte
	if _, err := io.ReadFull(message, first[:]); err != nil {
		return nil
	}
	channel := first[0]
	switch {
	case c.closes && channel == remotecommand.StreamClose:
		return c.takeClose(message)
	case c.base64:
		channel -= '0'
		message = base64.NewDecoder(base64.StdEncoding, message)
	}
	if to := c.to[channel]; to != nil {
		return c.pass(message, to)
	}
	return c.pass(message, io.Discard)
}

// pass copies what a message holds as it comes.
func (c *channels) pass(message io.Reader, to io.Writer) error {
	buf := buffers.Get().(*[messageBytes]byte)
	defer buffers.Put(buf)
	for {
		n, err := message.Read(buf[:])
		if _, err := to.Write(buf[:n]); err != nil {
			return &breach{websocket.ClosePolicyViolation, err}
		}
		var corrupt base64.CorruptInputError
		switch {
		case err == nil:
		case c.base64 && (errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt)):
			return &breach{websocket.CloseInvalidFramePayloadData, fmt.Errorf("a message is not in base64: %w", err)}
		default:
			return nil
		}
	}
}

// takeClose ends a channel.
func (c *channels) takeClose(message io.Reader) error {
	var rest [2]byte
	n, _ := io.ReadFull(message, rest[:])
	if n != 1 || rest[0] > remotecommand.StreamResize {
		return &breach{websocket.CloseProtocolError, fmt.Errorf("a message that ends a channel names none of 0 to %d: %v",
			remotecommand.StreamResize, rest[:n])}
	}
	if to := c.to[rest[0]]; to != nil {
		to.finish()
	}
	return nil
}

// output is a channel to the client.
type output struct {
	*channels
	number byte
}

// Write sends p, as messages that are small enough. Where it is empty that is one, too.
func (o output) Write(p []byte) (n int, err error) {
	most := messageBytes
	if o.base64 {
		most = base64.StdEncoding.DecodedLen(most)
	}
	for {
		part := p[n:min(len(p), n+most)]
		if err := o.send(o.number, part); err != nil {
			return n, err
		}
		if n += len(part); n == len(p) {
			return n, nil
		}
	}
}

// send sends a message.
func (c *channels) send(channel byte, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind, number := websocket.BinaryMessage, []byte{channel}
	if c.base64 { // which is a character, though one of two bytes is read by nobody
		kind, number = websocket.TextMessage, []byte(string(rune('0'+channel)))
	}
	w, err := c.socket.NextWriter(kind)
	if err != nil {
		return err
	}
	// The message fits the library's buffer, so that only the end of it can fail.
	_, _ = w.Write(number)
	if c.base64 {
		e := base64.NewEncoder(base64.StdEncoding, w)
		_, _ = e.Write(data)
		_ = e.Close()
	} else {
		_, _ = w.Write(data)
	}
	return w.Close()
}

// sizeBytes is how long the text of a size may be. Those of clients have some thirty bytes.
const sizeBytes = 256

// sizes are those of a client's terminal, each an object of JSON that has no other in it. Messages may hold several, or
// a part of one. What is none is passed over, and of several that nobody has asked for yet the last counts.
type sizes struct {
	next chan remotecommand.TerminalSize // of one

	// What follows is for the one who receives from the client.
	total int64
	text  []byte // of a size that has begun
	ended bool
}

func newSizes() *sizes { return &sizes{next: make(chan remotecommand.TerminalSize, 1)} }

// Write takes what the client says of its terminal, and fails when that is too much.
func (s *sizes) Write(p []byte) (int, error) {
	s.total += int64(len(p))
	if err := limit.TerminalSizes.Check(s.total); err != nil {
		return 0, err
	}
	for _, b := range p {
		switch {
		case b == '{':
			s.text = append(s.text[:0], b)
		case len(s.text) == 0:
		case len(s.text) == sizeBytes:
			s.text = s.text[:0]
		default:
			s.text = append(s.text, b)
			if b == '}' {
				s.take()
				s.text = s.text[:0]
			}
		}
	}
	return len(p), nil
}

// take has a size be the next one, if it is one.
func (s *sizes) take() {
	var size remotecommand.TerminalSize
	if err := json.Unmarshal(s.text, &size); err != nil || s.ended || size.Width < 1 || size.Height < 1 {
		return
	}
	select {
	case <-s.next:
	default:
	}
	s.next <- size
}

// finish says that there will be no more. It may be repeated.
func (s *sizes) finish() {
	if !s.ended {
		s.ended = true
		close(s.next)
	}
}

// wait waits for the next size.
func (s *sizes) wait() (width, height uint16, ok bool) {
	size, ok := <-s.next
	return size.Width, size.Height, ok
}
