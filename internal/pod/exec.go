package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// maxOutput is how much of the output of an ExecSync is kept, both streams together, in bytes. The rest is read and
// thrown away.
func maxOutput() int { return int(limit.ExecOutput.Limit) }

// Output is what an exec left behind.
type Output struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// fit makes both streams fit into one answer, and returns how many bytes were cut off for that. The smaller one is cut
// only when it takes more than half.
func (o *Output) fit() (lost int64) {
	cut := func(b *[]byte, to int) {
		lost += int64(max(len(*b)-to, 0))
		*b = (*b)[:min(len(*b), to)]
	}
	cut(&o.Stdout, max(maxOutput()/2, maxOutput()-len(o.Stderr)))
	cut(&o.Stderr, maxOutput()-len(o.Stdout))
	return lost
}

// Streams reaches into running containers.
type Streams struct{ *Pods }

// ExecSync runs a command in a running container and waits for its end. When timeout, if not zero, passes first,
// nothing of the exec is left and the error is DeadlineExceeded.
func (s Streams) ExecSync(ctx context.Context, id sandbox.ID, cmd []string, timeout time.Duration) (Output, error) {
	if len(cmd) == 0 {
		return Output{}, fail.New(errdefs.ErrInvalidArgument, "exec in container %s: no command", id)
	}
	p, err := s.running(ctx, id)
	if err != nil {
		return Output{}, err
	}
	base, err := s.RuntimeSpec(id)
	if err != nil {
		return Output{}, err
	}
	stdout, stderr := capture{of: &s.outputs}, capture{of: &s.outputs}
	defer func() { stdout.release(); stderr.release() }()
	res, err := s.cfg.Runtime.Exec(ctx, string(p.id), string(id), runtime.Exec{
		Process: spec.Process(base, cmd, false), Stdout: &stdout, Stderr: &stderr, Timeout: timeout,
	})
	out := Output{Stdout: stdout.data, Stderr: stderr.data, ExitCode: res.ExitCode}
	if lost := out.fit() + stdout.lost + stderr.lost; lost > 0 {
		s.cfg.Log.Warn("the output of an exec does not fit into its answer; the rest of it is lost", "container", id,
			"command", cmd[0], "lost", lost)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return out, fmt.Errorf("exec in container %s: %w: %w", id, ctx.Err(), err)
	case err != nil:
		return out, fail.About(fail.Detail{Pod: string(p.id), Container: string(id)}, "exec in container %s: %w", id, err)
	case res.TimedOut:
		return out, fmt.Errorf("exec of %q in container %s: not done after %v: %w", cmd, id, timeout,
			context.DeadlineExceeded)
	}
	return out, nil
}

// running returns the pod of a container that runs.
func (s Streams) running(ctx context.Context, id sandbox.ID) (*pod, error) {
	p, _, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	if c := p.rec.Load().Container(id); c == nil || c.State != sandbox.Running {
		state := sandbox.State("gone")
		if c != nil {
			state = c.State
		}
		return nil, fail.New(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, state)
	}
	return p, nil
}

// ReopenLog makes the monitor write to a new file under the log's path, after somebody renamed the old one.
func (s Streams) ReopenLog(ctx context.Context, id sandbox.ID) error {
	p, c, err := s.findContainer(id)
	if err != nil {
		return err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return err
	}
	if c.State != sandbox.Running {
		return fail.New(errdefs.ErrFailedPrecondition, "container %s is %s, not running", id, c.State)
	}
	return p.s.cfg.Runtime.ReopenLog(ctx, string(p.id), string(id), p.rec.Load().Log(c))
}

// RuntimeSpec returns the spec that the container's runtime was given, with the limits in force, while the container
// has a process.
func (s *Pods) RuntimeSpec(id sandbox.ID) (*specs.Spec, error) {
	p, c, err := s.findContainer(id)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.cfg.BundleSpec(p.id, id))
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

// outputs counts what all execs under way keep. The zero value is ready.
type outputs struct{ used atomic.Int64 }

// take returns how much of n there is room for.
func (o *outputs) take(n int64) int64 {
	for {
		used := o.used.Load()
		n = max(min(n, limit.ExecOutputs.Limit-used), 0)
		if o.used.CompareAndSwap(used, used+n) {
			return n
		}
	}
}

func (o *outputs) give(n int64) { o.used.Add(-n) }

// ownOutput is what a stream of an exec keeps however much others do.
const ownOutput = 64 << 10

// capture keeps what one stream of an exec brings, as far as it fits into an answer, and as all execs have room.
type capture struct {
	of    *outputs
	taken int64 // of it
	data  []byte
	lost  int64 // bytes thrown away
}

// release gives back what was taken of the room that all share.
func (c *capture) release() {
	c.of.give(c.taken)
	c.taken = 0
}

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	kept := min(len(p), maxOutput()-len(c.data))
	if c.lost > 0 {
		kept = 0 // what comes behind a gap would look as if it belonged there
	}
	if own := max(ownOutput-len(c.data), 0); kept > own {
		got := c.of.take(int64(kept - own))
		c.taken += got
		kept = own + int(got)
	}
	c.data = append(c.data, p[:kept]...)
	c.lost += int64(len(p) - kept)
	return len(p), nil
}
