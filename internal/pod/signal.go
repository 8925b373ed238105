package pod

import (
	"context"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// Signal sends the first process of a running container a signal, by its name or number. What comes of it is seen like
// any other end. After its stop signal, or one that kills, it does not start again by itself.
func Signal(ctx context.Context, s *Pods, id sandbox.ID, name string) error {
	sig, err := sandbox.StopSignal(name)
	if err != nil || name == "" {
		return fail.New(errdefs.ErrInvalidArgument, "%q is not a signal", name)
	}
	l, err := s.Catalog.adopted(ctx, id)
	if err != nil {
		return err
	}
	c := l.record()
	if c == nil || c.State != sandbox.Running {
		state := sandbox.State("gone")
		if c != nil {
			state = c.State
		}
		return fail.New(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, state)
	}
	if sig == int(unix.SIGKILL) || sig == c.StopSignal {
		noteContainerStop(l)
	}
	if sig == int(unix.SIGKILL) {
		willKill(l, c)
	}
	if err := l.cfg.Runtime.Signal(ctx, string(l.p.id), string(id), sig); err != nil {
		notKilled(l, c)
		return fail.About(fail.Detail{Pod: string(l.p.id), Container: string(id)}, "signal container %s: %w", id, err)
	}
	return nil
}
