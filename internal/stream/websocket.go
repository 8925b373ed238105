package stream

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/utils/exec"
)

// webSocketProtocols are those of a command over a WebSocket, in which channels are messages, and whether those are
// text in base64: "v5" is version 4, and a client can close its input. Those without a number, or with none at all, are
// older than version 4, and tell of an error in plain text. The library has them, too, and keeps what a client sends
// without a bound.
var webSocketProtocols = map[string]bool{
	remotecommand.StreamProtocolV5Name: false, remotecommand.StreamProtocolV4Name: false,
	"v4.base64.channel.k8s.io": true, remotecommand.StreamProtocolV1Name: false, "base64.channel.k8s.io": true, "": false,
}

// serveWebSocket serves a command over a WebSocket.
func (p player) serveWebSocket(w http.ResponseWriter, r *http.Request, failed string) {
	s, err := accept(w, r, func(protocol string) bool { _, known := webSocketProtocols[protocol]; return known })
	if err != nil {
		p.cfg.Log.Debug("a WebSocket connection could not be opened", "error", err)
		return
	}
	c := newChannels(s, webSocketProtocols[s.Subprotocol()], &p.backlogs)
	c.closes = s.Subprotocol() == remotecommand.StreamProtocolV5Name
	in, sizes := c.input(remotecommand.StreamStdIn), newSizes()
	c.to[remotecommand.StreamResize] = sizes
	c.gone = in.finish // who waits for the command sees the end of the connection
	if !p.options.Stdin {
		in.abandon()
	}
	out, errs, end := output{c, remotecommand.StreamStdOut}, output{c, remotecommand.StreamStdErr},
		output{c, remotecommand.StreamErr}
	ctx, done := c.serve(r, p.cfg.Log)
	defer done()
	switch { // an empty message says that the connection is there
	case p.options.Stdout:
		_, _ = out.Write(nil)
	case p.options.Stderr:
		_, _ = errs.Write(nil)
	default:
		_, _ = end.Write(nil)
	}
	err = p.run(ctx, in, out, errs, sizes.wait)
	in.abandon()
	o := outcome(err, failed)
	text, err := json.Marshal(o)
	if !strings.HasPrefix(s.Subprotocol(), "v") { // only of a failure, and its text alone
		text = []byte(o.Message)
	}
	if err == nil && len(text) > 0 {
		_, _ = end.Write(text)
	}
}

// status is how a command ended, as metav1.Status has it.
type status struct {
	Status  string   `json:"status"`
	Message string   `json:"message,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Details *details `json:"details,omitempty"`
	Code    int      `json:"code,omitempty"`
}

type details struct {
	Causes []cause `json:"causes"`
}

type cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func outcome(err error, failed string) status {
	var code exec.CodeExitError
	switch {
	case err == nil:
		return status{Status: "Success"}
	case errors.As(err, &code):
		return status{
			Status: "Failure", Reason: remotecommand.NonZeroExitCodeReason, Message: "command terminated with non-zero " +
				"exit code: " + code.Error(),
			Details: &details{[]cause{{remotecommand.ExitCodeCauseType, strconv.Itoa(code.Code)}}},
		}
	}
	return status{
		Status: "Failure", Reason: "InternalError", Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("Internal error occurred: %s: %v", failed, err),
	}
}

// tunnel takes SPDY out of the messages of a WebSocket and serves that: how clients forward ports over WebSockets.
func tunnel(w http.ResponseWriter, r *http.Request, log *slog.Logger, serve http.HandlerFunc) {
	s, err := accept(w, r, func(protocol string) bool {
		return protocol == portforward.WebsocketsSPDYTunnelingPortForwardV1
	})
	if err != nil {
		log.Debug("a WebSocket connection could not be opened", "error", err)
		return
	}
	conn := &byteConn{Conn: s.raw, socket: s}
	defer conn.Close()
	inner := r.Clone(r.Context())
	inner.Header = http.Header{}
	inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
	serve(&tunnelled{conn: conn, header: http.Header{}}, inner)
}

// tunnelled is the answer to a request that was never made, whose connection is a WebSocket. Nothing that is said
// before it is taken over is heard.
type tunnelled struct {
	conn   net.Conn
	header http.Header
}

func (t *tunnelled) Header() http.Header         { return t.header }
func (t *tunnelled) Write(p []byte) (int, error) { return len(p), nil }
func (t *tunnelled) WriteHeader(int)             {}

// Hijack gives the connection away.
func (t *tunnelled) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
