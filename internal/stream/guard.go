package stream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/limit"
)

// The library that speaks SPDY keeps what a client sends without a bound: a frame of some kilobytes may hold headers of
// a gigabyte, since they are compressed. And what nobody reads, such as a stream too many, or output that comes from
// the client, blocks its goroutines for ever, also when the client has gone. A guard stands before it, and ends the
// session of a client that sends what no client of Kubernetes does.

const (
	// headerFields and headerBytes are those of a stream; kubectl sends three of some twenty bytes.
	headerFields, headerBytes = 16, 512
	// dataBytes is as much of a data frame as the library is given at once, so that what a session may always keep is two.
	dataBytes = ownBytes / 2
)

// answerTime is how long a stream may take to be answered before the client's next reset, or its end, is told.
const answerTime = 5 * time.Second

// SPDY/3, "Control frames" and "Data frames".
const (
	frameHead  = 8
	typeReply  = 2
	typeReset  = 3
	flagFinish = 1
	controlBit = 1 << 31
)

// bounds are what a client of a session may have.
type bounds struct {
	streams  int // of a command, in all, each of another type; 0 is a port-forward
	open     int // of a port-forward, at the same time
	carrying carrying
}

// guardedWriter gives the library a guarded connection.
type guardedWriter struct {
	http.ResponseWriter
	request *http.Request
	bounds  bounds
	kept    *kept
	ended   func(error) // hears why a session was ended
	conn    *guard      // once it was given away
}

// close ends the connection if it was given away: the library leaves it open where a client does not open its streams.
func (w *guardedWriter) close() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
}

// Hijack gives the connection away.
func (w *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, http.ErrNotSupported
	}
	conn, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, err
	}
	g, err := newGuard(conn, rw.Reader, w.bounds, w.kept, w.ended, func() { linger(w.request, conn) })
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	w.conn = g
	return g, bufio.NewReadWriter(bufio.NewReader(g), bufio.NewWriter(g)), nil
}

// guard is a connection whose frames of SPDY are looked at in both directions.
type guard struct {
	net.Conn
	in     *bufio.Reader
	bounds bounds
	kept   *kept
	ended  func(error)
	close  func()      // does it once
	closed atomic.Bool // it was called, and nothing can be sent any more

	// Of what the client sends, for one reader.
	ready   []byte          // is to be read next
	data    int             // that many bytes of a data frame are to be read then
	rest    int             // and that many of it are left for further frames
	head    [frameHead]byte // of the data frame
	control bytes.Buffer    // a control frame for parser
	parser  *spdy.Framer
	last    spdy.StreamId
	types   map[string]bool // of the streams of a command that were opened
	sizes   int64           // bytes of the sizes of a terminal
	refused bool            // something that it has sent

	sent outgoing

	mu      sync.Mutex // guards what follows
	open    map[spdy.StreamId]stream
	waiting map[spdy.StreamId]bool // the streams that were not answered yet
	answer  chan struct{}          // closed and made anew when one was
}

// stream is one that is open: the library keeps it until both sides have ended it, or one has reset it.
type stream struct {
	kind    string
	request string // of a port-forward: both streams of a connection have the same
	paired  bool   // with the one for errors

	client, server bool // have ended it
}

func newGuard(conn net.Conn, in *bufio.Reader, b bounds, k *kept, ended func(error), end func()) (g *guard, err error) {
	g = &guard{Conn: conn, in: in, bounds: b, kept: k, ended: ended, close: sync.OnceFunc(end),
		types: map[string]bool{}, open: map[spdy.StreamId]stream{}, waiting: map[spdy.StreamId]bool{},
		answer: make(chan struct{})}
	g.parser, err = spdy.NewFramerWithOptions(io.Discard, &g.control,
		spdy.WithMaxControlFramePayloadSize(uint32(limit.ControlFrame.Limit)),
		spdy.WithMaxHeaderCount(headerFields), spdy.WithMaxHeaderFieldSize(headerBytes))
	return g, err
}

// Read reads what the client sends, as long as it keeps to its bounds. After Close nothing comes: linger reads from the
// connection, too, so that what is read here may begin in the middle of a frame.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.read(p)
	if g.closed.Load() {
		n, err = 0, io.EOF
	}
	if err != nil {
		g.answered() // a stream that comes when the library is ending its session blocks it
	}
	if g.refused {
		_ = g.Conn.Close() // and with it what runs for the client: the library ends what it reads alone
	}
	return n, err
}

func (g *guard) read(p []byte) (int, error) {
	for len(g.ready) == 0 && g.data == 0 { // a frame that is passed over is none
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	if len(g.ready) > 0 {
		n := copy(p, g.ready)
		g.ready = g.ready[n:]
		return n, nil
	}
	n, err := g.in.Read(p[:min(len(p), g.data)])
	g.data -= n
	return n, err
}

// Close ends the connection when the client has what was sent to it.
func (g *guard) Close() error {
	g.closed.Store(true)
	g.kept.backlog.close()
	g.forget()
	g.close()
	return nil
}

// forget has no stream be open any more.
func (g *guard) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bounds.carrying.give(len(g.open))
	clear(g.open)
}

// next takes the next frame.
func (g *guard) next() error {
	if g.rest > 0 {
		g.cut()
		return nil
	}
	if _, err := io.ReadFull(g.in, g.head[:]); err != nil {
		return err
	}
	first, size := binary.BigEndian.Uint32(g.head[:]), int(binary.BigEndian.Uint32(g.head[4:])&0xffffff)
	var err error
	if first&controlBit == 0 {
		err = g.takeData(spdy.StreamId(first), size)
		if g.head[4]&flagFinish != 0 {
			g.finish(spdy.StreamId(first), true, false)
		}
	} else {
		err = g.takeControl(size)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !g.closed.Load() {
		g.refused = true
		g.ended(err)
	}
	return err
}

// cut makes a frame of the next part of a data frame, once there is room for it. What says that it is the last of its
// stream comes with the last.
func (g *guard) cut() {
	n := min(g.rest, dataBytes)
	g.kept.add(spdy.StreamId(binary.BigEndian.Uint32(g.head[:])), n)
	g.rest -= n
	head := g.head
	binary.BigEndian.PutUint32(head[4:], uint32(n))
	if g.rest == 0 {
		head[4] = g.head[4]
	}
	g.ready, g.data = head[:], n
}

// takeData takes a data frame of a stream of which there is who reads it.
func (g *guard) takeData(id spdy.StreamId, n int) error {
	g.mu.Lock()
	of, open := g.open[id]
	g.mu.Unlock()
	switch {
	case n == 0 || !open: // its end; the library passes over what comes for a stream that has ended
	case len(g.types) < g.bounds.streams, of.kind == portforward.StreamTypeData && !of.paired:
		return errors.New("the client sends data before it has opened all streams")
	case of.kind == remotecommand.StreamTypeResize:
		return g.takeSize(n)
	case of.kind != remotecommand.StreamTypeStdin && of.kind != portforward.StreamTypeData:
		return fmt.Errorf("the client sends data on a stream of the type %q, which is the server's", of.kind)
	}
	g.rest = n
	g.cut()
	return nil
}

// takeSize takes a size of a terminal. What is none is passed over: the library ends reading sizes for it, and one
// without an end it keeps.
func (g *guard) takeSize(n int) error {
	g.sizes += int64(n)
	if err := limit.TerminalSizes.Check(g.sizes); err != nil {
		return err
	}
	frame := append(make([]byte, 0, frameHead+min(n, sizeBytes)), g.head[:]...)
	if n > sizeBytes {
		if _, err := g.in.Discard(n); err != nil {
			return err
		}
	} else {
		frame = frame[:frameHead+n]
		if _, err := io.ReadFull(g.in, frame[frameHead:]); err != nil {
			return err
		}
	}
	var size remotecommand.TerminalSize
	if json.Unmarshal(frame[frameHead:], &size) != nil {
		frame = frame[:frameHead]
	}
	binary.BigEndian.PutUint32(frame[4:], uint32(len(frame)-frameHead))
	frame[4] = g.head[4]
	if len(frame) > frameHead || frame[4]&flagFinish != 0 {
		g.ready = frame
	}
	return nil
}

// takeControl takes a control frame whose payload has that size.
func (g *guard) takeControl(size int) error {
	if err := limit.ControlFrame.Check(int64(size)); err != nil {
		return err
	}
	frame := make([]byte, frameHead+size)
	copy(frame, g.head[:])
	if _, err := io.ReadFull(g.in, frame[frameHead:]); err != nil {
		return err
	}
	g.control.Write(frame)
	parsed, err := g.parser.ReadFrame()
	if err != nil {
		return fmt.Errorf("a frame of SPDY with headers of more than %d fields of %d bytes, or that is none: %w",
			headerFields, headerBytes, err)
	}
	if g.control.Len() > 0 { // the library would take it for the next frame, unseen
		return fmt.Errorf("a %T is %d bytes longer than what it says", parsed, g.control.Len())
	}
	g.ready = frame
	switch f := parsed.(type) {
	case *spdy.SynStreamFrame:
		return g.begins(f)
	case *spdy.RstStreamFrame:
		g.answered() // the library blocks where a stream is reset that was not
		g.reset(f.StreamId)
	case *spdy.GoAwayFrame:
		g.ready = nil
		return io.EOF // the library ends a session for it at once, without a look at those who work on its streams
	case *spdy.HeadersFrame, *spdy.SynReplyFrame:
		return fmt.Errorf("the client has sent a %T, which is the server's or nobody's", f)
	}
	return nil
}

// begins takes a stream that the client opens.
func (g *guard) begins(f *spdy.SynStreamFrame) error {
	kind := f.Headers.Get(remotecommand.StreamType)
	if f.StreamId <= g.last || f.CFHeader.Flags != 0 || f.AssociatedToStreamId != 0 {
		return fmt.Errorf("the client has opened stream %d (flags %x, of stream %d) after stream %d", f.StreamId,
			f.CFHeader.Flags, f.AssociatedToStreamId, g.last)
	}
	g.last = f.StreamId
	if g.bounds.streams > 0 {
		if g.types[kind] || len(g.types) == g.bounds.streams {
			return fmt.Errorf("the client has opened a stream of the type %q after %d others: its session has %d, each of "+
				"another type", kind, len(g.types), g.bounds.streams)
		}
		g.types[kind] = true
	}
	request := f.Headers.Get(portforward.PortForwardRequestIDHeader)
	if request == "" && kind == portforward.StreamTypeData { // an old client, whose streams follow each other
		request = strconv.Itoa(int(f.StreamId) - 2)
	} else if request == "" {
		request = strconv.Itoa(int(f.StreamId))
	}
	if kind == remotecommand.StreamTypeStdin || kind == portforward.StreamTypeData {
		g.kept.begin(f.StreamId)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return io.EOF
	}
	if err := g.bounds.carrying.take(1); err != nil {
		return err
	}
	g.open[f.StreamId] = stream{kind: kind, request: request}
	g.pairLocked(request)
	if g.bounds.open > 0 && len(g.open) > g.bounds.open {
		return fmt.Errorf("the client has more than %d streams open at the same time, which are those that one side has not "+
			"ended", g.bounds.open)
	}
	g.waiting[f.StreamId] = true
	return nil
}

// pairLocked notes that both streams of a connection are open.
func (g *guard) pairLocked(request string) {
	errs, data := false, spdy.StreamId(0)
	for id, s := range g.open {
		switch {
		case s.request != request:
		case s.kind == portforward.StreamTypeData:
			data = id
		case s.kind == portforward.StreamTypeError:
			errs = true
		}
	}
	if s, there := g.open[data]; there && errs {
		s.paired = true
		g.open[data] = s
	}
}

// answered waits until all streams were answered.
func (g *guard) answered() {
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for {
		g.mu.Lock()
		n, next := len(g.waiting), g.answer
		g.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-next:
		case <-late.C:
			return
		}
	}
}

// isAnswered notes that a stream was, by a reply or a reset.
func (g *guard) isAnswered(id spdy.StreamId) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[id] {
		delete(g.waiting, id)
		close(g.answer)
		g.answer = make(chan struct{})
	}
}

// reset notes that one side has reset a stream.
func (g *guard) reset(id spdy.StreamId) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endLocked(id)
}

func (g *guard) endLocked(id spdy.StreamId) {
	if _, open := g.open[id]; open {
		g.bounds.carrying.give(1)
		delete(g.open, id)
	}
}

// finish notes that one side, or both, have ended their direction of a stream.
func (g *guard) finish(id spdy.StreamId, client, server bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, open := g.open[id]
	s.client, s.server = s.client || client, s.server || server
	switch {
	case !open:
	case s.client && s.server:
		g.endLocked(id)
	default:
		g.open[id] = s
	}
}

// Write writes to the client. One goroutine writes at a time, as the library does. It never fails: a write that does
// ends the connection, by which everybody ends who works for it. The library would wait for ever for an answer to a
// stream that it could not write, and whoever has something to say on that stream with it. What comes after Close, such
// as the answer to a ping, is dropped: the client may not have taken yet what was sent before.
func (g *guard) Write(p []byte) (int, error) {
	if !g.closed.Load() {
		if _, err := g.Conn.Write(p); err != nil && !g.closed.Load() {
			_ = g.Conn.Close()
		}
	}
	g.sent.pass(p, g)
	return len(p), nil
}

// outgoing finds in what is written to a client which streams were answered and which have ended.
type outgoing struct {
	head []byte // of the frame that has begun, with the stream where the payload of a control frame begins with it
	skip int    // so many bytes come before the next frame
}

func (o *outgoing) pass(p []byte, g *guard) {
	for len(p) > 0 {
		if o.skip > 0 {
			n := min(o.skip, len(p))
			o.skip, p = o.skip-n, p[n:]
			continue
		}
		n := min(o.wants()-len(o.head), len(p))
		o.head, p = append(o.head, p[:n]...), p[n:]
		if len(o.head) < o.wants() {
			continue
		}
		first, size := binary.BigEndian.Uint32(o.head), int(binary.BigEndian.Uint32(o.head[4:])&0xffffff)
		finished := o.head[4]&flagFinish != 0
		switch {
		case first&controlBit == 0:
			if finished {
				g.finish(spdy.StreamId(first), false, true)
			}
		case len(o.head) > frameHead:
			size -= len(o.head) - frameHead
			id := spdy.StreamId(binary.BigEndian.Uint32(o.head[frameHead:]) &^ controlBit)
			g.isAnswered(id)
			switch {
			case first&0xffff == typeReset:
				g.reset(id)
				g.kept.end(id)
			case finished:
				g.finish(id, false, true)
			}
		}
		o.head, o.skip = o.head[:0], max(0, size)
	}
}

// wants is how many bytes of the frame tell what is to be known.
func (o *outgoing) wants() int {
	if len(o.head) < frameHead || binary.BigEndian.Uint32(o.head)&controlBit == 0 {
		return frameHead
	}
	if t := binary.BigEndian.Uint16(o.head[2:]); t == typeReply || t == typeReset {
		return frameHead + 4
	}
	return frameHead
}

// streamsOf is how many streams the library expects of a session.
func streamsOf(r *http.Request, o *remotecommand.Options) int {
	n := 1 // how it ended
	for _, wanted := range []bool{o.Stdin, o.Stdout, o.Stderr, o.TTY && resizes(r)} {
		if wanted {
			n++
		}
	}
	return n
}

// resizes reports whether the protocol that the library chooses has sizes of a terminal: from version 3 on.
func resizes(r *http.Request) bool {
	unheard := &tunnelled{header: http.Header{}}
	protocol, _ := httpstream.Handshake(r, unheard, remotecommand.SupportedStreamingProtocols)
	return protocol == remotecommand.StreamProtocolV3Name || protocol == remotecommand.StreamProtocolV4Name
}
