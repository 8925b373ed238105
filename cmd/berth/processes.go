package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/pod"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/session"
	"berth/internal/stream"
)

// processService reaches into the containers and ports of pods.
type processService struct {
	pods       *pod.Pods
	streams    *streamNode
	background *background // ends the detached commands
	log        *slog.Logger
	detached   atomic.Int64 // commands without a waiting client
}

// Signal sends a container a signal.
func (ps *processService) Signal(ctx context.Context, req *admin.SignalRequest) error {
	id, err := ps.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	return pod.Signal(ctx, ps.pods, id, req.Signal)
}

// detachedStart is how long a command that is left alone is watched for an error of its start. No runtime says when it
// has started one.
const detachedStart = 500 * time.Millisecond

// execDetached runs a command for which no client waits. It ends with its container, or with this daemon, since nobody
// would know of it afterwards.
func (ps *processService) execDetached(ctx context.Context, id sandbox.ID, req *admin.ExecRequest) error {
	if req.TTY || req.Stdin {
		return fail.New(errdefs.ErrInvalidArgument, "exec in container %s: a detached command has neither input nor a "+
			"terminal", id)
	}
	if err := limit.DetachedCommands.Check(ps.detached.Add(1)); err != nil {
		ps.detached.Add(-1)
		return err
	}
	began := make(chan error, 1)
	go func() {
		defer ps.detached.Add(-1)
		code, err := ps.pods.Sessions.Session(ps.background.ctx, id, session.Session{
			Cmd: req.Command, As: session.As{User: req.User, Dir: req.Dir, Env: req.Env},
		})
		began <- err
		ps.log.Debug("a detached command has ended", "container", id, "code", code, "error", err)
	}()
	select {
	case err := <-began:
		return err
	case <-time.After(detachedStart):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Attach joins the streams of a container.
func (ps *processService) Attach(
	ctx context.Context, req *admin.AttachRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error,
) error {
	id, err := ps.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	in := newTypeahead()
	defer in.Close()
	go input(recv, in, func(s admin.Size) {
		if err := ps.pods.Sessions.Resize(ctx, id, s.Width, s.Height); err != nil {
			ps.log.Debug("a terminal could not be resized", "container", id, "error", err)
		}
	})
	a := runtime.Attach{
		Stdout: writer(func(p []byte) error { return send(&admin.AttachOutput{Stdout: p}) }),
		Stderr: writer(func(p []byte) error { return send(&admin.AttachOutput{Stderr: p}) }),
		Ready:  func() { _ = send(&admin.AttachOutput{Ready: true}) },
	}
	if req.Stdin {
		a.Stdin = in
	}
	if req.KeepInput {
		a.Behind = func() { _ = send(&admin.AttachOutput{Behind: true}) }
	}
	return ps.pods.Sessions.Attach(ctx, id, a)
}

// Exec runs a command in a container.
func (ps *processService) Exec(
	ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error,
) error {
	id, err := ps.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	if req.Detach {
		return ps.execDetached(ctx, id, req)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newTypeahead()
	defer in.Close()
	sizes := make(chan admin.Size)
	go input(recv, in, func(s admin.Size) {
		select {
		case sizes <- s:
		case <-ctx.Done():
		}
	})
	s := session.Session{
		Cmd: req.Command, TTY: req.TTY, As: session.As{User: req.User, Dir: req.Dir, Env: req.Env},
		Stdout: writer(func(p []byte) error { return send(&admin.AttachOutput{Stdout: p}) }),
		Resize: func() (uint16, uint16, bool) {
			select {
			case s := <-sizes:
				return s.Width, s.Height, true
			case <-ctx.Done():
				return 0, 0, false
			}
		},
	}
	if !req.TTY {
		s.Stderr = writer(func(p []byte) error { return send(&admin.AttachOutput{Stderr: p}) })
		go func() { // the sizes are taken here alone
			for _, _, ok := s.Resize(); ok; _, _, ok = s.Resize() {
			}
		}()
	}
	if req.Stdin {
		s.Stdin = in
	}
	code, err := ps.pods.Sessions.Session(ctx, id, s)
	if err != nil {
		return err
	}
	return send(&admin.AttachOutput{Exit: &code})
}

// PortForward connects to a port of a pod.
func (ps *processService) PortForward(
	ctx context.Context, req *admin.PortForwardRequest, recv func() (*admin.PortData, error),
	send func(*admin.PortData) error,
) error {
	id, err := ps.pods.Catalog.ID(req.Pod)
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	conn, err := ps.streams.Dial(dial, string(id), req.Port)
	cancel()
	if err != nil {
		return fmt.Errorf("forward port %d of pod %s: %w", req.Port, id, err)
	}
	defer conn.Close()
	if err := send(&admin.PortData{}); err != nil {
		return err
	}
	up := make(chan error, 1)
	go func() { up <- receivePort(conn, recv) }()
	err = admin.SendPort(conn, send, func() {})
	if err != nil {
		return fmt.Errorf("port %d of pod %s: %w", req.Port, id, err)
	}
	return <-up
}

// dialTimeout bounds a connection to a port of a pod.
const dialTimeout = 10 * time.Second

// receivePort gives a pod what a client sends, and its end. When the client is gone the connection is cut.
func receivePort(conn stream.Conn, recv func() (*admin.PortData, error)) error {
	for {
		d, err := recv()
		if err != nil {
			stream.Reset(conn)
			return err
		}
		if _, err := conn.Write(d.Data); err != nil {
			return err
		}
		if d.End {
			return conn.CloseWrite()
		}
	}
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) {
	if err := w(append([]byte(nil), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
