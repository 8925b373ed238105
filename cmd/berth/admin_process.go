package main

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/pod"
	"berth/internal/sandbox"
	"berth/internal/session"
)

// Signal sends a container a signal.
func (n service) Signal(ctx context.Context, req *admin.SignalRequest) error {
	id, err := n.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	return pod.Signal(ctx, n.pods, id, req.Signal)
}

// detachedStart is how long a command that is left alone is watched for an error of its start. No runtime says when it
// has started one.
const detachedStart = 500 * time.Millisecond

// execDetached runs a command that nobody waits for. It ends with its container, or with this daemon, since nobody
// would know of it afterwards.
func execDetached(ctx context.Context, n *node, id sandbox.ID, req *admin.ExecRequest) error {
	if req.TTY || req.Stdin {
		return fail.New(errdefs.ErrInvalidArgument, "exec in container %s: a detached command has neither input nor a "+
			"terminal", id)
	}
	if err := limit.DetachedCommands.Check(n.detached.Add(1)); err != nil {
		n.detached.Add(-1)
		return err
	}
	began := make(chan error, 1)
	go func() {
		defer n.detached.Add(-1)
		code, err := n.pods.Sessions.Session(n.life, id, session.Session{
			Cmd: req.Command, As: session.As{User: req.User, Dir: req.Dir, Env: req.Env},
		})
		began <- err
		n.log.Debug("a detached command has ended", "container", id, "code", code, "error", err)
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
