package stream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/limit"
)

// framed is what a client sends as frames of SPDY.
func framed(t *testing.T, frames ...spdy.Frame) *bytes.Buffer {
	t.Helper()
	var all bytes.Buffer
	f, err := spdy.NewFramer(&all, &all)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range frames {
		if err := f.WriteFrame(one); err != nil {
			t.Fatal(err)
		}
	}
	return &all
}

// opens is a stream that the client opens, with headers.
func opens(id spdy.StreamId, headers ...string) *spdy.SynStreamFrame {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &spdy.SynStreamFrame{StreamId: id, Headers: h}
}

func sends(id spdy.StreamId, n int) *spdy.DataFrame {
	return &spdy.DataFrame{StreamId: id, Data: make([]byte, n)}
}

// guarding is a guard that reads what a client sends, and answers nothing.
func guarding(t *testing.T, b bounds, sent io.Reader) (*guard, *error) {
	t.Helper()
	own, peer := net.Pipe()
	t.Cleanup(func() { _, _ = own.Close(), peer.Close() })
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	ended := new(error)
	g, err := newGuard(own, bufio.NewReader(sent), b, newKept(&backlogs{}), func(err error) { *ended = err },
		func() { _ = own.Close() })
	if err != nil {
		t.Fatal(err)
	}
	return g, ended
}

func TestGuardEndsSessions(t *testing.T) {
	errs, in, out := opens(1, "streamType", "error"), opens(3, "streamType", "stdin"), opens(5, "streamType", "stdout")
	resize := opens(5, "streamType", "resize")
	size := &spdy.DataFrame{StreamId: 5, Data: []byte(`{"Width":80,"Height":24}` + "\n")}
	pairErr := opens(1, "streamType", "error", "requestID", "0")
	pairData := opens(3, "streamType", "data", "requestID", "0")
	firstData := opens(1, "streamType", "data", "requestID", "0")
	thenErr := opens(3, "streamType", "error", "requestID", "0")
	later := &spdy.HeadersFrame{StreamId: 1, Headers: http.Header{}}
	bomb := opens(1, "streamType", "error", "x", strings.Repeat("y", 1<<20))
	flagged := opens(1, "streamType", "error")
	flagged.CFHeader.Flags = spdy.ControlFlagFin
	many := opens(1, "streamType", "error")
	for i := range headerFields {
		many.Headers.Set("x"+strings.Repeat("y", i), "z")
	}
	var pairs []spdy.Frame
	for id := spdy.StreamId(1); id < 40; id += 2 {
		pairs = append(pairs, opens(id, "streamType", "error"))
	}
	command, forwards := bounds{streams: 3}, bounds{open: 10}
	for name, c := range map[string]struct {
		bounds bounds
		sent   []spdy.Frame
		says   string // "" is that the session goes on
	}{
		"a command":                   {command, []spdy.Frame{errs, in, out, sends(3, 100_000), sends(3, 0)}, ""},
		"sizes":                       {command, []spdy.Frame{errs, in, resize, size, size}, ""},
		"sizes without an end":        {command, []spdy.Frame{errs, in, resize, sends(5, 5<<20)}, limit.TerminalSizes.Name},
		"a stream too many":           {command, []spdy.Frame{errs, in, out, opens(7, "streamType", "stderr")}, "has 3"},
		"a stream twice":              {command, []spdy.Frame{errs, opens(3, "streamType", "error")}, `"error" after 1 others`},
		"input before all streams":    {command, []spdy.Frame{errs, in, sends(3, 1)}, "before it has opened all"},
		"output from the client":      {command, []spdy.Frame{errs, in, out, sends(5, 1)}, `"stdout", which is the server's`},
		"headers that are compressed": {command, []spdy.Frame{bomb}, "headers of more than"},
		"many headers":                {command, []spdy.Frame{many}, "headers of more than"},
		"a number again":              {command, []spdy.Frame{errs, errs}, "after stream 1"},
		"flags":                       {command, []spdy.Frame{flagged}, "flags 1"},
		"headers later":               {command, []spdy.Frame{errs, later}, "HeadersFrame"},
		"a connection":                {forwards, []spdy.Frame{pairErr, pairData, sends(3, 10)}, ""},
		"data alone":                  {forwards, []spdy.Frame{pairData, sends(3, 10)}, "before it has opened all"},
		"data first":                  {forwards, []spdy.Frame{firstData, thenErr, sends(1, 10)}, ""},
		"an old client":               {forwards, []spdy.Frame{errs, opens(3, "streamType", "data"), sends(3, 10)}, ""},
		"many connections":            {forwards, pairs, "more than 10 streams open"},
	} {
		t.Run(name, func(t *testing.T) {
			sent := framed(t, c.sent...)
			want := bytes.Clone(sent.Bytes())
			g, ended := guarding(t, c.bounds, sent)
			got, err := io.ReadAll(&unanswered{g})
			if c.says != "" {
				if err == nil || *ended == nil || !strings.Contains((*ended).Error(), c.says) {
					t.Errorf("%v, said: %v", err, *ended)
				}
				return
			}
			if err != nil || *ended != nil {
				t.Errorf("%v, said: %v", err, *ended)
			}
			has, most := plain(t, got)
			if had, _ := plain(t, want); has != had || most > dataBytes {
				t.Errorf("what the library reads is not what was sent, or is %d bytes at once", most)
			}
		})
	}
}

// TestGuardPassesOverSizes that are none, or have no end: the library would read no more of them, or keep them.
func TestGuardPassesOverSizes(t *testing.T) {
	const size = `{"Width":80,"Height":24}`
	for name, c := range map[string]struct {
		said  string
		comes bool
	}{
		"a size":           {size, true},
		"with a long text": {`{"Width":80,"Height":24,"x":"` + strings.Repeat("y", sizeBytes) + `"}`, false},
		"without an end":   {`{"Width":80,"x":"}`, false},
		"the end of one":   {`"}`, false},
		"no size":          {`"80x24"`, false},
		"too large":        {`{"Width":80000,"Height":24}`, false},
		"nothing":          {strings.Repeat("\x00", 30), false},
	} {
		t.Run(name, func(t *testing.T) {
			last := &spdy.DataFrame{StreamId: 3, Flags: spdy.DataFlagFin, Data: []byte(c.said)}
			g, ended := guarding(t, bounds{streams: 2}, framed(t, opens(1, "streamType", "error"),
				opens(3, "streamType", "resize"), &spdy.DataFrame{StreamId: 3, Data: []byte(c.said)}, last))
			got, err := io.ReadAll(&unanswered{g})
			if err != nil || *ended != nil {
				t.Fatalf("%v, said: %v", err, *ended)
			}
			f, err := spdy.NewFramer(io.Discard, bytes.NewReader(got))
			if err != nil {
				t.Fatal(err)
			}
			var sizes []string
			for finished := false; !finished; {
				frame, err := f.ReadFrame()
				if err != nil {
					t.Fatalf("%q, then %v", sizes, err)
				}
				if f, ok := frame.(*spdy.DataFrame); ok {
					sizes = append(sizes, string(f.Data))
					finished = f.Flags&spdy.DataFlagFin != 0
				}
			}
			want := []string{""}
			if c.comes {
				want = []string{c.said, c.said}
			}
			if !slices.Equal(sizes, want) {
				t.Errorf("%q come, not %q", sizes, want)
			}
		})
	}
}

// TestGuardReadsWholeFrames sends frames that say that they are longer than what they hold: what follows in them would
// come to the library as frames that the guard has not seen.
func TestGuardReadsWholeFrames(t *testing.T) {
	hidden := framed(t, opens(1, "streamType", "error")).Bytes()
	for name, head := range map[string][]byte{
		"a ping":   {0x80, 3, 0, 6, 0, 0, 0, byte(4 + len(hidden)), 0, 0, 0, 1},
		"a reset":  {0x80, 3, 0, 3, 0, 0, 0, byte(8 + len(hidden)), 0, 0, 0, 9, 0, 0, 0, 5},
		"settings": {0x80, 3, 0, 4, 0, 0, 0, byte(4 + len(hidden)), 0, 0, 0, 0},
	} {
		g, ended := guarding(t, bounds{streams: 3}, bytes.NewReader(append(head, hidden...)))
		got, err := io.ReadAll(&unanswered{g})
		if err == nil || *ended == nil || !strings.Contains((*ended).Error(), "bytes longer than") || len(got) > 0 {
			t.Errorf("%s: %d bytes come through; %v, said: %v", name, len(got), err, *ended)
		}
	}
}

// TestGuardEndsWithTheClient has a client say that it goes, and one that cannot be written to any more.
func TestGuardEndsWithTheClient(t *testing.T) {
	g, ended := guarding(t, bounds{open: 10}, framed(t, &spdy.GoAwayFrame{}, opens(1, "streamType", "error")))
	if got, err := io.ReadAll(g); err != nil || len(got) > 0 || *ended != nil {
		t.Errorf("%d bytes after the client's goodbye, %v, %v", len(got), err, *ended)
	}
	_ = g.Conn.Close()
	if n, err := g.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("the library is told that a write has failed: %d, %v", n, err)
	}
}

// unanswered has the guard wait for no answers.
type unanswered struct{ g *guard }

func (u *unanswered) Read(p []byte) (int, error) {
	u.g.mu.Lock()
	clear(u.g.waiting)
	u.g.mu.Unlock()
	return u.g.Read(p)
}

// plain is what frames say, however data is cut, and how much data a frame has at most.
func plain(t *testing.T, frames []byte) (text string, most int) {
	t.Helper()
	f, err := spdy.NewFramer(io.Discard, bytes.NewReader(frames))
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for {
		frame, err := f.ReadFrame()
		if errors.Is(err, io.EOF) {
			return said.String(), most
		}
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *spdy.SynStreamFrame:
			said.WriteString("opens " + frame.Headers.Get("streamType") + "\n")
		case *spdy.DataFrame:
			most = max(most, len(frame.Data))
			said.WriteString(strings.Repeat("d", len(frame.Data)))
		}
	}
}

// TestGuardWaitsForAnswers has a client go when the library has not answered its stream yet: the end is told then,
// wherever the client has stopped.
func TestGuardWaitsForAnswers(t *testing.T) {
	opening := framed(t, opens(1, "streamType", "error")).Bytes()
	for name, after := range map[string][]byte{
		"between frames":            nil,
		"in the head of a frame":    opening[:5],
		"in a frame that opens":     opening[:12],
		"in data":                   {0, 0, 0, 1, 0, 0, 0, 9, 'x'},
		"with a frame that is none": {0x80, 3, 0, 77, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) { guardWaits(t, append(bytes.Clone(opening), after...)) })
	}
}

func guardWaits(t *testing.T, sent []byte) {
	g, _ := guarding(t, bounds{streams: 1}, bytes.NewReader(sent))
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, g)
		read <- err
	}()
	select {
	case err := <-read:
		t.Fatalf("the end is told before the stream was answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	f, err := spdy.NewFramer(g, bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WriteFrame(&spdy.SynReplyFrame{StreamId: 1, Headers: http.Header{}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-read:
	case <-time.After(answerTime - time.Second):
		t.Error("the end is not told although the stream was answered")
	}
	if len(g.open) != 1 {
		t.Errorf("%d streams are open", len(g.open))
	}
}

// TestGuardCountsStreamsThatAreHalfOpen until both sides have ended them, or one has reset them: for so long the
// library keeps them, whatever they were for.
func TestGuardCountsStreamsThatAreHalfOpen(t *testing.T) {
	last := func(id spdy.StreamId) *spdy.DataFrame { return &spdy.DataFrame{StreamId: id, Flags: spdy.DataFlagFin} }
	for name, c := range map[string]struct {
		sent, answer []spdy.Frame
		open         int
	}{
		"none has ended it": {nil, nil, 1},
		"the server":        {nil, []spdy.Frame{last(1)}, 1},
		"the client":        {[]spdy.Frame{last(1)}, nil, 1},
		"both":              {[]spdy.Frame{last(1)}, []spdy.Frame{last(1)}, 0},
		"the server resets": {nil, []spdy.Frame{&spdy.RstStreamFrame{StreamId: 1, Status: spdy.Cancel}}, 0},
		"the client resets": {[]spdy.Frame{&spdy.RstStreamFrame{StreamId: 1, Status: spdy.Cancel}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			sent := append([]spdy.Frame{opens(1, "streamType", "error")}, c.sent...)
			g, _ := guarding(t, bounds{open: 10}, framed(t, sent...))
			if _, err := io.ReadAll(&unanswered{g}); err != nil {
				t.Fatal(err)
			}
			f, err := spdy.NewFramer(g, bytes.NewReader(nil))
			if err != nil {
				t.Fatal(err)
			}
			for _, frame := range c.answer {
				if err := f.WriteFrame(frame); err != nil {
					t.Fatal(err)
				}
			}
			if len(g.open) != c.open {
				t.Errorf("%d streams are open, wanted %d", len(g.open), c.open)
			}
		})
	}
}

func TestStreamsOf(t *testing.T) {
	for protocols, want := range map[string]int{
		"v4.channel.k8s.io": 4, "v9.x, v3.channel.k8s.io": 4, "v2.channel.k8s.io": 3, "channel.k8s.io,v4.channel.k8s.io": 3,
		"": 3,
	} {
		r := httptest.NewRequest(http.MethodPost, "/exec/x", nil)
		r.Header.Set(httpstream.HeaderProtocolVersion, protocols)
		if n := streamsOf(r, &remotecommand.Options{Stdin: true, Stdout: true, TTY: true}); n != want {
			t.Errorf("%q: %d streams, wanted %d", protocols, n, want)
		}
	}
}
