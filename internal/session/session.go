package session

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Session is a command in a container whose streams are a client's.
type Session struct {
	Cmd            []string
	TTY            bool
	Stdin          io.Reader // nil: no input
	Stdout, Stderr io.Writer // nil: not wanted; a terminal has no Stderr
	// As is how the command differs from the container's own process.
	As As
	// Resize waits for the next size of the terminal, in characters; false is that there will be none. It may be nil.
	Resize func() (width, height uint16, ok bool)
}

// Session runs a command in a running container until it ends, and returns its exit code. When ctx ends first, the
// client is gone and the command is hung up; what does not end by that is killed a little later.
func (s *Sessions) Session(ctx context.Context, id sandbox.ID, c Session) (int, error) {
	if len(c.Cmd) == 0 {
		return 0, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: no command", id)
	}
	r, err := s.running(ctx, id)
	if err != nil {
		return 0, err
	}
	base, err := s.RuntimeSpec(id)
	if err != nil {
		return 0, err
	}
	p, err := spec.Process(base, c.Cmd, c.TTY)
	if err == nil {
		err = change(p, s.Layout.Rootfs(r.ID, id), c.As)
	}
	if err != nil {
		return 0, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: %w", id, err)
	}
	code, err := s.Runtime.Session(ctx, string(r.ID), string(id), runtime.Session{
		Process: p, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Resize: c.Resize,
	})
	if err != nil {
		return 0, fmt.Errorf("exec of %q in container %s: %w", c.Cmd, id, err)
	}
	return code, nil
}

// Running is an error where a command could not be run in the container now.
func (s *Sessions) Running(ctx context.Context, id sandbox.ID) error {
	_, err := s.running(ctx, id)
	return err
}

// Attachable is an error where a client could not attach to the container now.
func (s *Sessions) Attachable(ctx context.Context, id sandbox.ID) error {
	_, err := s.attachable(ctx, id)
	return err
}

// NetNS returns where the network namespace of a ready pod is pinned, "" where it has the node's.
func (s *Sessions) NetNS(ctx context.Context, id sandbox.ID) (string, error) {
	r, err := s.Pods.Adopted(ctx, id)
	if err != nil {
		return "", err
	}
	switch {
	case r.State != sandbox.Ready:
		return "", fail.New(errdefs.ErrFailedPrecondition, "pod %s is %s, not ready", id, r.State)
	case r.HostNetwork():
		return "", nil
	}
	return s.Layout.NetNSPin(id), nil
}

// Sandbox is how the runtime of a pod is called whose containers are in a sandbox; false where they are not.
func (s *Sessions) Sandbox(id sandbox.ID) (h runtime.Handler, ok bool, err error) {
	r, err := s.Pods.Pod(id)
	if err != nil {
		return h, false, err
	}
	if !slices.ContainsFunc(r.Containers, func(c *sandbox.Container) bool { return c.Live() && r.Sandboxed(c) }) {
		return h, false, nil
	}
	h, err = s.Handler(r)
	return h, true, err
}

// Attach connects a caller's streams to a running container until its output ends or ctx does.
func (s *Sessions) Attach(ctx context.Context, id sandbox.ID, a runtime.Attach) error {
	r, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.Runtime.Attach(ctx, string(r.ID), string(id), a)
}

// Resize sets the size of a container's terminal, in characters.
func (s *Sessions) Resize(ctx context.Context, id sandbox.ID, width, height uint16) error {
	r, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.Runtime.Resize(ctx, string(r.ID), string(id), width, height)
}

// attachable returns the pod of a container that is created or runs: a client may attach before it starts it, so that
// it misses no output.
func (s *Sessions) attachable(ctx context.Context, id sandbox.ID) (*sandbox.Record, error) {
	r, _, err := s.Pods.Container(id)
	if err != nil {
		return nil, err
	}
	if r, err = s.Pods.Adopted(ctx, r.ID); err != nil {
		return nil, err
	}
	if c := r.Container(id); c == nil || !c.Live() {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "container %s does not run", id)
	}
	return r, nil
}

// ReopenLog makes the monitor write to a new file under the log's path, after the old one was renamed.
func (s *Sessions) ReopenLog(ctx context.Context, id sandbox.ID) error {
	r, err := s.running(ctx, id)
	if err != nil {
		return err
	}
	return s.Runtime.ReopenLog(ctx, string(r.ID), string(id), r.Log(r.Container(id)))
}

// loggedTime is how long after a container's end it is told whether its log has its output. A monitor that owes the log
// something gives up after two minutes, and nothing shows that then.
const loggedTime = time.Minute

// Logged reports whether the log of a container that has ended has its output, or says itself what was dropped. It is
// not known of one that ended long ago or whose pod was stopped.
func (s *Sessions) Logged(id sandbox.ID) (logged, known bool) {
	r, c, err := s.Pods.Container(id)
	if err != nil || c.State != sandbox.Exited || time.Since(c.FinishedAt) > loggedTime {
		return false, false
	}
	logged = runtime.Logged(s.Layout.State, string(r.ID), string(id))
	if r, _, err = s.Pods.Container(id); err != nil || r.State != sandbox.Ready {
		return false, false // the journals were removed with the pod
	}
	return logged, true
}
