package stream

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/exec"

	"berth/internal/limit"
)

// webSocketProtocols are those of a command over a WebSocket, in which channels are messages: "v5" is version 4, and a
// client can close its input. Those without a number, or with none at all, are older than version 4, and tell of an
// error in plain text. The library has them, too, and reads the sizes of a terminal without a bound.
var webSocketProtocols = map[string]wsstream.ChannelProtocolConfig{
	remotecommand.StreamProtocolV5Name: {Binary: true}, remotecommand.StreamProtocolV4Name: {Binary: true},
	"v4.base64.channel.k8s.io": {}, remotecommand.StreamProtocolV1Name: {Binary: true}, "base64.channel.k8s.io": {},
	"": {Binary: true},
}

// serveWebSocket serves a command over a WebSocket.
func (p player) serveWebSocket(w http.ResponseWriter, r *http.Request, failed string) {
	channels := make([]wsstream.ChannelType, remotecommand.StreamResize+1) // those not asked for are passed over
	for i, wanted := range []bool{p.options.Stdin, p.options.Stdout, p.options.Stderr, true, true} {
		switch {
		case !wanted:
		case i == remotecommand.StreamStdIn || i == remotecommand.StreamResize:
			channels[i] = wsstream.ReadChannel
		default:
			channels[i] = wsstream.WriteChannel
		}
	}
	protocols := map[string]wsstream.ChannelProtocolConfig{}
	for name, c := range webSocketProtocols {
		protocols[name] = wsstream.ChannelProtocolConfig{Binary: c.Binary, Channels: channels}
	}
	conn := wsstream.NewConn(protocols)
	conn.SetIdleTimeout(p.cfg.IdleTimeout)
	protocol, c, err := conn.Open(w, r)
	if err != nil {
		p.cfg.Log.Debug("a WebSocket connection could not be opened", "error", err)
		return
	}
	defer conn.Close()
	for i, t := range channels {
		if t == wsstream.WriteChannel { // an empty message says that the connection is there
			_, _ = c[i].Write(nil)
			break
		}
	}
	sizes := json.NewDecoder(io.LimitReader(c[remotecommand.StreamResize], limit.TerminalSizes.Limit))
	err = p.run(r.Context(), c[remotecommand.StreamStdIn], c[remotecommand.StreamStdOut], c[remotecommand.StreamStdErr],
		func() (uint16, uint16, bool) {
			var size remotecommand.TerminalSize
			err := sizes.Decode(&size)
			return size.Width, size.Height, err == nil
		})
	o := outcome(err, failed)
	text, err := json.Marshal(o)
	if !strings.HasPrefix(protocol, "v") { // only of a failure, and its text alone
		text = []byte(o.Message)
	}
	if err == nil && len(text) > 0 {
		_, _ = c[remotecommand.StreamErr].Write(text)
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
func tunnel(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			for _, protocol := range c.Protocol {
				if protocol == portforward.WebsocketsSPDYTunnelingPortForwardV1 {
					c.Protocol = []string{protocol}
					return nil
				}
			}
			return fmt.Errorf("of the protocols %v none is %s", c.Protocol, portforward.WebsocketsSPDYTunnelingPortForwardV1)
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			inner := r.Clone(r.Context())
			inner.Header = http.Header{}
			inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
			inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
			inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
			serve(&tunnelled{conn: ws, header: http.Header{}}, inner)
		},
	}.ServeHTTP(w, r)
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
