package main

import (
	"context"
	"errors"
	"log/slog"

	"k8s.io/klog/v2"

	"berth/internal/network"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/session"
	"berth/internal/stream"
)

// openStreams listens for those who were given the address of a stream.
func (n *node) openStreams(context.Context) (err error) {
	klog.SetSlogLogger(slog.New(quiet{n.log.Handler()}))
	c := n.cfg.Streaming
	n.streamNode = &streamNode{n.pods.Sessions, n.driver, n.log}
	n.streams, err = stream.Listen(stream.Config{
		Node: n.streamNode, Log: n.log, Address: c.Address, Port: c.Port, CertFile: c.Cert, KeyFile: c.Key,
		IdleTimeout: c.IdleTimeout.Duration, MaxWaiting: c.MaxWaiting,
		MaxSessions: c.MaxSessions, MaxTargetSessions: c.MaxTargetSessions,
	})
	return err
}

// quiet takes what libraries call errors for debugging: a client that goes away is one to them.
type quiet struct{ slog.Handler }

// Enabled reports whether debugging is on.
func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle writes a record down as one for debugging.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }
func (q quiet) WithGroup(name string) slog.Handler   { return quiet{q.Handler.WithGroup(name)} }

// streamNode is where streams lead: into the containers and the ports of pods.
type streamNode struct {
	sessions *session.Sessions
	runtime  *runtime.Runtime
	log      *slog.Logger
}

// Exec runs a command in a container.
func (n *streamNode) Exec(
	ctx context.Context, container string, cmd []string, tty bool, s stream.Streams,
) (int, error) {
	return n.sessions.Session(ctx, sandbox.ID(container), session.Session{
		Cmd: cmd, TTY: tty, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Resize: s.Resize,
	})
}

// Attach joins the streams of a container.
func (n *streamNode) Attach(ctx context.Context, container string, s stream.Streams) error {
	id := sandbox.ID(container)
	if s.Resize != nil {
		go func() {
			for width, height, ok := s.Resize(); ok; width, height, ok = s.Resize() {
				if err := n.sessions.Resize(ctx, id, width, height); err != nil {
					n.log.Debug("a terminal could not be resized", "container", id, "error", err)
				}
			}
		}()
	}
	return n.sessions.Attach(ctx, id, runtime.Attach{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr})
}

// Dial connects to a port of a pod: in its network namespace, or inside its sandbox, which may have a network stack of
// its own.
func (n *streamNode) Dial(ctx context.Context, id string, port uint16) (stream.Conn, error) {
	netns, err := n.sessions.NetNS(ctx, sandbox.ID(id))
	if err != nil {
		return nil, err
	}
	conn, err := network.DialLocal(ctx, netns, port)
	if err == nil {
		return conn, nil
	}
	h, sandboxed, handlerErr := n.sessions.Sandbox(sandbox.ID(id))
	if !sandboxed || handlerErr != nil {
		return nil, errors.Join(err, handlerErr)
	}
	inside, insideErr := runtime.DialInside(ctx, n.runtime, id, h, port)
	if insideErr != nil {
		return nil, errors.Join(err, insideErr)
	}
	return inside, nil
}
