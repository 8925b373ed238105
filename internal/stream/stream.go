// Package stream serves exec, attach and port-forward over HTTP, to those to whom a kubelet was given an address. SPDY
// is spoken by k8s.io/cri-streaming, behind a guard that keeps from it what it would keep without a bound or wait for
// without an end (guard.go). What comes over a WebSocket is served here: commands (websocket.go), port-forwards
// (ports.go), and the tunnel for those that speak SPDY inside of one.
//
// An address holds a token, good for one connection within a minute. A client that goes away is noticed also while its
// connection is not read from: the context of its request ends, whatever it waits for.
package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Node is where the streams lead. Calls end soon after ctx does: then the client has gone.
type Node interface {
	// Exec runs a command in a container and returns its exit code.
	Exec(ctx context.Context, container string, cmd []string, tty bool, s Streams) (code int, err error)
	// Attach joins the streams of a container until its output ends.
	Attach(ctx context.Context, container string, s Streams) error
	// Dial connects to a port of a pod's loopback interface.
	Dial(ctx context.Context, pod string, port uint16) (Conn, error)
}

// Conn is a connection one of whose directions can end before the other.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Streams are a client's. What it did not ask for is nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize waits for the next size of the client's terminal; false is that there will be none.
	Resize func() (width, height uint16, ok bool)
}

// Config is what a Server is made of. Node and Log are required.
type Config struct {
	Node Node
	Log  *slog.Logger
	// Address is the IP address or the name of this node that is listened on, and that clients are told; Port 0 is any.
	Address string
	Port    int
	// CertFile and KeyFile are for TLS; none where they are empty. They are read again when they change.
	CertFile, KeyFile string
	// IdleTimeout ends a connection over which nothing goes for so long.
	IdleTimeout time.Duration
	// MaxWaiting is how many sessions may be asked for within a minute and not begun.
	MaxWaiting int
	// MaxSessions is how many may be asked for and not ended, MaxTargetSessions the same of one container or pod.
	// 0 is no limit.
	MaxSessions, MaxTargetSessions int
}

// createTimeout bounds how long a SPDY client may take to create its streams.
const createTimeout = 30 * time.Second

// headerTimeout bounds how long a client may take for its handshake of TLS, and for the head of its request.
const headerTimeout = 10 * time.Second

// Server hands out addresses and serves them.
type Server struct {
	cfg      Config
	tickets  tickets
	backlogs backlogs
	carried  carried
	lines    *listener
	listener net.Listener
	http     *http.Server
	base     url.URL

	createTime time.Duration // createTimeout, or less in tests
}

// Listen makes a server whose addresses can be handed out. Serve has to follow.
func Listen(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, base: url.URL{Scheme: "http"}, createTime: createTimeout}
	s.tickets.waiting = limit.Sessions.At(int64(cfg.MaxWaiting))
	s.tickets.sessions = limit.OpenSessions.At(int64(cfg.MaxSessions))
	s.tickets.ofTarget = limit.TargetSessions.At(int64(cfg.MaxTargetSessions))
	var secure *tls.Config
	if cfg.CertFile != "" {
		pair := &keyPair{cert: cfg.CertFile, key: cfg.KeyFile, log: cfg.Log}
		if _, err := pair.get(nil); err != nil {
			return nil, fmt.Errorf("streaming server: %w", err)
		}
		// Streams take the connection over, which HTTP/2 does not allow.
		secure = &tls.Config{GetCertificate: pair.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
		s.base.Scheme = "https"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("streaming server: %w: set streaming.address and streaming.port to what is free on this node",
			err)
	}
	addr := l.Addr().(*net.TCPAddr)
	if secure == nil && !addr.IP.IsLoopback() {
		cfg.Log.Warn("exec, attach and port-forward are served without TLS to the network: set streaming.cert and "+
			"streaming.key", "address", addr)
	}
	s.base.Host = net.JoinHostPort(s.host(addr), strconv.Itoa(addr.Port))
	s.lines = &listener{Listener: l, idleTime: cfg.IdleTimeout}
	s.listener = s.lines
	if secure != nil {
		s.listener = tls.NewListener(s.lines, secure)
	}
	s.http = &http.Server{
		Handler: s.routes(), ConnContext: lineContext,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// host is what clients are told: the node itself where it listens on all of its addresses, for the kubelet is here,
// too.
func (s *Server) host(addr *net.TCPAddr) string {
	switch {
	case !addr.IP.IsUnspecified():
		return s.cfg.Address
	case s.cfg.Address == "::":
		return "::1"
	}
	return "127.0.0.1"
}

// Serve serves until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("streaming server: %w", err)
	}
	return nil
}

// Close ends the server and every connection.
func (s *Server) Close() error {
	err := s.http.Close()
	s.lines.closeAll()
	return err
}

// Exec returns the address at which a command will be run.
func (s *Server) Exec(req *runtimeapi.ExecRequest) (string, error) {
	if len(req.Cmd) == 0 {
		return "", fail.New(errdefs.ErrInvalidArgument, "exec: no command")
	}
	if err := checkStreams(req.Tty, req.Stdin, req.Stdout, req.Stderr); err != nil {
		return "", fmt.Errorf("exec: %w", err)
	}
	return s.issue("exec", req.ContainerId, req)
}

// Attach returns the address at which a container can be attached to.
func (s *Server) Attach(req *runtimeapi.AttachRequest) (string, error) {
	if err := checkStreams(req.Tty, req.Stdin, req.Stdout, req.Stderr); err != nil {
		return "", fmt.Errorf("attach: %w", err)
	}
	return s.issue("attach", req.ContainerId, req)
}

// PortForward returns the address at which ports of a pod can be forwarded.
func (s *Server) PortForward(req *runtimeapi.PortForwardRequest) (string, error) {
	// Of a WebSocket each has two channels, whose number is a byte, and all are connected at once.
	if err := limit.ForwardedPorts.Check(int64(len(req.Port))); err != nil {
		return "", fmt.Errorf("port-forward: %w", err)
	}
	for _, p := range req.Port {
		if p < 1 || p > 65535 {
			return "", fail.New(errdefs.ErrInvalidArgument, "port-forward: there is no port %d", p)
		}
	}
	return s.issue("portforward", req.PodSandboxId, req)
}

func checkStreams(tty, stdin, stdout, stderr bool) error {
	switch {
	case tty && stderr:
		return fail.New(errdefs.ErrInvalidArgument, "a terminal has no stderr of its own")
	case !stdin && !stdout && !stderr:
		return fail.New(errdefs.ErrInvalidArgument, "none of stdin, stdout and stderr is asked for")
	}
	return nil
}

// issue makes an address out of what is to be done there, in a container or pod.
func (s *Server) issue(kind, target string, req any) (string, error) {
	token, err := s.tickets.issue(kind, target, req)
	if err != nil {
		return "", fmt.Errorf("%s: %w", kind, err)
	}
	return s.base.JoinPath(kind, token).String(), nil
}
