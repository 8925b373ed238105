package stream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/exec"

	"berth/internal/limit"
)

// idleElsewhere has the library not look for sessions that carry nothing: it does not end one whose client reads
// nothing. The line does.
const idleElsewhere = 0

// routes are the addresses that issue makes.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for kind, serve := range map[string]func(http.ResponseWriter, *http.Request, any){
		"exec": s.serveExec, "attach": s.serveAttach, "portforward": s.servePortForward,
	} {
		handle := func(w http.ResponseWriter, r *http.Request) {
			req, ok := s.tickets.use(kind, r.PathValue("token"))
			if !ok {
				http.Error(w, "there is nothing at this address: it is good for one connection, within a minute",
					http.StatusNotFound)
				return
			}
			defer s.tickets.end(req.target)
			n, _ := r.Context().Value(lineKey{}).(*line)
			s.lines.use(n)
			defer s.lines.disuse(n)
			serve(w, r, req.req)
		}
		mux.HandleFunc("GET /"+kind+"/{token}", handle)
		mux.HandleFunc("POST /"+kind+"/{token}", handle)
	}
	return mux
}

func (s *Server) serveExec(w http.ResponseWriter, r *http.Request, req any) {
	e := req.(*runtimeapi.ExecRequest)
	o := &remotecommand.Options{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, TTY: e.Tty}
	p := player{s, o, nil, func(ctx context.Context, streams Streams) error {
		code, err := s.cfg.Node.Exec(ctx, e.ContainerId, e.Cmd, e.Tty, streams)
		if err == nil && code != 0 {
			err = exec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: code}
		}
		return err
	}}
	if wsstream.IsWebSocketRequest(r) {
		p.serveWebSocket(w, r, "error executing command in container")
		return
	}
	g := s.guarded(w, r, bounds{streams: streamsOf(r, o)})
	defer g.close()
	p.kept = g.kept
	remotecommand.ServeExec(g, r, p, "", "", e.ContainerId, e.Cmd, o, idleElsewhere, s.createTime,
		remotecommand.SupportedStreamingProtocols)
}

func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request, req any) {
	a := req.(*runtimeapi.AttachRequest)
	o := &remotecommand.Options{Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr, TTY: a.Tty}
	p := player{s, o, nil, func(ctx context.Context, streams Streams) error {
		return s.cfg.Node.Attach(ctx, a.ContainerId, streams)
	}}
	if wsstream.IsWebSocketRequest(r) {
		p.serveWebSocket(w, r, "error attaching to container")
		return
	}
	g := s.guarded(w, r, bounds{streams: streamsOf(r, o)})
	defer g.close()
	p.kept = g.kept
	remotecommand.ServeAttach(g, r, p, "", "", a.ContainerId, o, idleElsewhere, s.createTime,
		remotecommand.SupportedStreamingProtocols)
}

func (s *Server) servePortForward(w http.ResponseWriter, r *http.Request, req any) {
	q := req.(*runtimeapi.PortForwardRequest)
	f := forwarder{s, r.Context(), &atomic.Int64{}, nil}
	carries := carrying{&s.carried, q.PodSandboxId}
	serve := func(w http.ResponseWriter, r *http.Request) {
		// Each connection has a stream for errors, too.
		g := s.guarded(w, r, bounds{open: 2 * int(limit.ForwardedConnections.Limit), carrying: carries})
		defer g.close()
		f.kept = g.kept
		portforward.ServePortForward(g, r, f, q.PodSandboxId, "", &portforward.V4Options{}, idleElsewhere, s.createTime,
			portforward.SupportedProtocols)
	}
	switch {
	case wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		tunnel(w, r, s.cfg.Log, serve)
	case wsstream.IsWebSocketRequest(r):
		f.serveWebSocket(w, r, carries, q.Port)
	default:
		serve(w, r)
	}
}

// guarded gives the library a connection on which a client keeps to its bounds, until its close is called.
func (s *Server) guarded(w http.ResponseWriter, r *http.Request, b bounds) *guardedWriter {
	return &guardedWriter{ResponseWriter: w, request: r, bounds: b, kept: newKept(&s.backlogs), ended: func(err error) {
		s.cfg.Log.Warn("a session of a client is ended for what it has sent", "client", r.RemoteAddr, "error", err)
	}}
}

// player does what one connection was made for, with the streams that the client has opened.
type player struct {
	*Server
	options *remotecommand.Options
	kept    *kept // where the library speaks
	play    func(context.Context, Streams) error
}

// run plays with the streams that were asked for; a protocol may have opened others.
func (p player) run(ctx context.Context, in io.Reader, out, errs io.Writer,
	resize func() (width, height uint16, ok bool)) error {
	var s Streams
	if p.options.Stdin {
		s.Stdin = in
	}
	if p.options.Stdout {
		s.Stdout = out
	}
	if p.options.Stderr {
		s.Stderr = errs
	}
	if p.options.TTY {
		s.Resize = resize
	}
	err := p.play(ctx, s)
	if err != nil && ctx.Err() != nil {
		p.cfg.Log.Debug("a client went away", "error", err)
	}
	return err
}

// resizing waits for what the library has read of a client's sizes; nil where the protocol has none.
func resizing(sizes <-chan remotecommand.TerminalSize) func() (width, height uint16, ok bool) {
	if sizes == nil {
		return nil
	}
	return func() (uint16, uint16, bool) {
		size, ok := <-sizes
		return size.Width, size.Height, ok
	}
}

// counted is an input that the library has.
func (p player) counted(in io.Reader) io.Reader {
	if s, ok := in.(httpstream.Stream); ok {
		return counted{s, p.kept}
	}
	return in
}

// ExecInContainer runs a command.
func (p player) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errs io.WriteCloser,
	_ bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return p.run(ctx, p.counted(in), out, errs, resizing(resize))
}

// AttachContainer attaches to a container.
func (p player) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errs io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize) error {
	return p.run(ctx, p.counted(in), out, errs, resizing(resize))
}
