package pod

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Session is a command in a container with somebody at its streams.
type Session struct {
	Cmd            []string
	TTY            bool
	Stdin          io.Reader // nil: no input
	Stdout, Stderr io.Writer // nil: not wanted; a terminal has no Stderr
	// Resize waits for the next size of the terminal, in characters; false is that there will be none. It may be nil.
	Resize func() (width, height uint16, ok bool)
}

// Session runs a command in a running container until it ends, and returns its exit code. When ctx ends first, the
// client is gone and the command is hung up; what does not end by that is killed a little later.
func (s Streams) Session(ctx context.Context, id sandbox.ID, c Session) (int, error) {
	if len(c.Cmd) == 0 {
		return 0, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: no command", id)
	}
	p, err := s.running(ctx, id)
	if err != nil {
		return 0, err
	}
	base, err := s.RuntimeSpec(id)
	if err != nil {
		return 0, err
	}
	code, err := s.cfg.Runtime.Session(ctx, string(p.id), string(id), runtime.Session{
		Process: spec.Process(base, c.Cmd, c.TTY), Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Resize: c.Resize,
	})
	if err != nil {
		return 0, fmt.Errorf("exec of %q in container %s: %w", c.Cmd, id, err)
	}
	return code, nil
}

// Running is an error where a command could not be run in the container now.
func (s Streams) Running(ctx context.Context, id sandbox.ID) error {
	_, err := s.running(ctx, id)
	return err
}

// Attachable is an error where nobody could attach to the container now.
func (s Streams) Attachable(ctx context.Context, id sandbox.ID) error {
	_, err := s.attachable(ctx, id)
	return err
}

// NetNS returns where the network namespace of a ready pod is pinned, "" where it has the node's.
func (s Streams) NetNS(ctx context.Context, id sandbox.ID) (string, error) {
	p, err := s.find(id)
	if err != nil {
		return "", err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return "", err
	}
	r := p.rec.Load()
	switch {
	case r.State != sandbox.Ready:
		return "", fail.New(errdefs.ErrFailedPrecondition, "pod %s is %s, not ready", id, r.State)
	case r.HostNetwork():
		return "", nil
	}
	return s.cfg.NetNSPin(id), nil
}

// Sandbox is how the runtime of a pod is called whose containers are in a sandbox; false where they are not.
func (s Streams) Sandbox(id sandbox.ID) (h runtime.Handler, ok bool, err error) {
	p, err := s.find(id)
	if err != nil {
		return h, false, err
	}
	r := p.rec.Load()
	if !slices.ContainsFunc(r.Containers, func(c *sandbox.Container) bool { return c.Live() && r.Sandboxed(c) }) {
		return h, false, nil
	}
	h, err = s.cfg.handler(r)
	return h, true, err
}

// Attach connects a caller's streams to a running container until its output ends or ctx does.
func (s Streams) Attach(ctx context.Context, id sandbox.ID, a runtime.Attach) error {
	p, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.cfg.Runtime.Attach(ctx, string(p.id), string(id), a)
}

// attachable returns the pod of a container that is created or runs: a client may attach before it starts it, so that
// it misses no output.
func (s Streams) attachable(ctx context.Context, id sandbox.ID) (*pod, error) {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	if c := p.rec.Load().Container(id); c == nil || !c.Live() {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "container %s does not run", id)
	}
	return p, nil
}

// Resize sets the size of a container's terminal, in characters.
func (s Streams) Resize(ctx context.Context, id sandbox.ID, width, height uint16) error {
	p, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.cfg.Runtime.Resize(ctx, string(p.id), string(id), width, height)
}
