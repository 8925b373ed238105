package session

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// ExecSync runs a command in a running container and waits for its end. When timeout, if not zero, passes first,
// nothing of the exec is left and the error is DeadlineExceeded.
func (s *Sessions) ExecSync(ctx context.Context, id sandbox.ID, cmd []string, timeout time.Duration) (Output, error) {
	if len(cmd) == 0 {
		return Output{}, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: no command", id)
	}
	r, err := s.running(ctx, id)
	if err != nil {
		return Output{}, err
	}
	base, err := s.RuntimeSpec(id)
	if err != nil {
		return Output{}, err
	}
	p, err := spec.Process(base, cmd, false)
	if err != nil {
		return Output{}, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: %w", id, err)
	}
	stdout, stderr := capture{of: &s.outputs}, capture{of: &s.outputs}
	defer func() { stdout.release(); stderr.release() }()
	res, err := s.Runtime.Exec(ctx, string(r.ID), string(id), runtime.Exec{
		Process: p, Stdout: &stdout, Stderr: &stderr, Timeout: timeout,
	})
	out := Output{Stdout: stdout.data, Stderr: stderr.data, ExitCode: res.ExitCode}
	if lost := out.fit() + stdout.lost + stderr.lost; lost > 0 {
		s.Log.Warn("the output of an exec does not fit into its answer; the rest of it is lost", "container", id,
			"command", cmd[0], "lost", lost)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return out, fmt.Errorf("exec in container %s: %w: %w", id, ctx.Err(), err)
	case err != nil:
		return out, fail.About(fail.Detail{Pod: string(r.ID), Container: string(id)}, "exec in container %s: %w", id, err)
	case res.TimedOut:
		return out, fmt.Errorf("exec of %q in container %s: not done after %v: %w", cmd, id, timeout,
			context.DeadlineExceeded)
	}
	return out, nil
}

// running returns the pod of a container that runs.
func (s *Sessions) running(ctx context.Context, id sandbox.ID) (*sandbox.Record, error) {
	r, _, err := s.Pods.Container(id)
	if err != nil {
		return nil, err
	}
	if r, err = s.Pods.Adopted(ctx, r.ID); err != nil {
		return nil, err
	}
	if c := r.Container(id); c == nil || c.State != sandbox.Running {
		state := sandbox.State("gone")
		if c != nil {
			state = c.State
		}
		return nil, fail.New(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, state)
	}
	return r, nil
}
