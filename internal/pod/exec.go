package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/runtime"
	"berth/internal/spec"
)

// MaxExecOutput is how much of each stream of an ExecSync is kept, in bytes; the rest is read and thrown away.
const MaxExecOutput = 16 << 20

// execDrain is how long output is still read after an exec's process ended: a child that keeps the pipes open does not
// hang the call.
const execDrain = 2 * time.Second

// Output is what an exec left behind.
type Output struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Streams reaches into running containers.
type Streams struct{ *Pods }

// ExecSync runs a command in a running container and waits for its end. When timeout, if not zero, passes first, nothing
// of the exec is left and the error is DeadlineExceeded.
func (s Streams) ExecSync(ctx context.Context, id ID, cmd []string, timeout time.Duration) (Output, error) {
	if len(cmd) == 0 {
		return Output{}, Fail(errdefs.ErrInvalidArgument, "exec in container %s: no command", id)
	}
	p, err := s.running(ctx, id)
	if err != nil {
		return Output{}, err
	}
	base, err := s.RuntimeSpec(id)
	if err != nil {
		return Output{}, err
	}
	stdout, err := newCapture()
	if err != nil {
		return Output{}, err
	}
	stderr, err := newCapture()
	if err != nil {
		stdout.close()
		return Output{}, err
	}
	res, err := s.cfg.Runtime.Exec(ctx, string(p.id), string(id), runtime.Exec{
		Process: spec.Process(base, cmd, false), Stdout: stdout.w, Stderr: stderr.w, Timeout: timeout,
	})
	until := time.Now().Add(execDrain)
	out := Output{Stdout: stdout.end(until), Stderr: stderr.end(until), ExitCode: res.ExitCode}
	switch {
	case err != nil && ctx.Err() != nil:
		return out, fmt.Errorf("exec in container %s: %w: %w", id, ctx.Err(), err)
	case err != nil:
		return out, fmt.Errorf("exec in container %s: %w", id, err)
	case res.TimedOut:
		return out, fmt.Errorf("exec of %q in container %s: not done after %v: %w", cmd, id, timeout, context.DeadlineExceeded)
	}
	return out, nil
}

// running returns the pod of a container that runs.
func (s Streams) running(ctx context.Context, id ID) (*pod, error) {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	if c := p.rec.Load().container(id); c == nil || c.State != Running {
		state := State("gone")
		if c != nil {
			state = c.State
		}
		return nil, Fail(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, state)
	}
	return p, nil
}

// Attach connects a caller's streams to a running container until its output ends or ctx does.
func (s Streams) Attach(ctx context.Context, id ID, a runtime.Attach) error {
	p, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.cfg.Runtime.Attach(ctx, string(p.id), string(id), a)
}

// attachable returns the pod of a container that is created or runs: a client may attach before it starts it, so that it
// misses no output.
func (s Streams) attachable(ctx context.Context, id ID) (*pod, error) {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	if c := p.rec.Load().container(id); c == nil || !c.live() {
		return nil, Fail(errdefs.ErrFailedPrecondition, "container %s does not run", id)
	}
	return p, nil
}

// Resize sets the size of a container's terminal, in characters.
func (s Streams) Resize(ctx context.Context, id ID, width, height uint16) error {
	p, err := s.attachable(ctx, id)
	if err != nil {
		return err
	}
	return s.cfg.Runtime.Resize(ctx, string(p.id), string(id), width, height)
}

// ReopenLog makes the monitor write to a new file under the log's path, after somebody renamed the old one.
func (s Streams) ReopenLog(ctx context.Context, id ID) error {
	p, c, err := s.findContainer(id)
	if err != nil {
		return err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	if c.State != Running {
		return Fail(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, c.State)
	}
	return p.s.cfg.Runtime.ReopenLog(ctx, string(p.id), string(id), p.rec.Load().log(c))
}

// RuntimeSpec returns the spec that the container's runtime was given, with the limits in force, while the container has a
// process.
func (s *Pods) RuntimeSpec(id ID) (*specs.Spec, error) {
	p, c, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.cfg.bundleSpec(p.id, id))
	if err != nil {
		return nil, fmt.Errorf("container %s: its runtime spec: %w", id, err)
	}
	var sp specs.Spec
	if err := json.Unmarshal(data, &sp); err != nil {
		return nil, fmt.Errorf("container %s: its runtime spec: %w", id, err)
	}
	if changed := c.Resources.Get(); changed != nil && sp.Linux != nil && sp.Linux.Resources != nil {
		now, _, err := spec.Resources(changed, s.cfg.Host)
		if err != nil {
			return nil, fmt.Errorf("container %s: its limits: %w", id, err)
		}
		overlay(sp.Linux.Resources, now)
	}
	return &sp, nil
}

// capture reads one stream of an exec.
type capture struct {
	r, w *os.File
	done sync.WaitGroup
	data []byte
	err  error
}

func newCapture() (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("exec: make a pipe: %w", err)
	}
	c := &capture{r: r, w: w}
	c.done.Go(func() {
		c.data, c.err = io.ReadAll(io.LimitReader(r, MaxExecOutput))
		if c.err == nil {
			_, c.err = io.Copy(io.Discard, r)
		}
	})
	return c, nil
}

// end returns what was written until the stream ended, or until the deadline where something still holds it open.
func (c *capture) end(deadline time.Time) []byte {
	_ = c.w.Close()
	_ = c.r.SetReadDeadline(deadline)
	c.done.Wait()
	_ = c.r.Close()
	if c.err != nil && !errors.Is(c.err, os.ErrDeadlineExceeded) {
		return append(c.data, fmt.Sprintf("\n(reading on: %v)", c.err)...)
	}
	return c.data
}

func (c *capture) close() { c.end(time.Now()) }
