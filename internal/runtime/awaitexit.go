package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/internal/process"
)

// tellTime is how long a monitor has to tell of a process that has ended before it is asked whether it is there, and
// lastTell how long one that is there has: it gives the container's output two seconds to run dry. successorTime is
// what one that has just taken over has.
const (
	tellTime      = 2 * time.Second
	lastTell      = 20 * time.Second
	successorTime = 5 * time.Second
)

// AwaitExit returns nil when OnExit has been called for the container's end, or is being called. It ends nothing, and
// depends on no monitor. When the process is gone and the monitor does not tell, the monitor is replaced. When the next
// one does not know either, or there is none, the exit is what the kernel or a file tells, else unknown. The error is
// that of ctx, or says what is left of the container and cannot be ended.
func (r *Runtime) AwaitExit(ctx context.Context, pod, ctr string) error {
	l := r.links.get(pod)
	exit := l.handles.exit(ctr)
	if err := awaitEnd(ctx, &r.cfg, l.handles, pod, ctr); err != nil || closed(exit) {
		return err
	}
	for waited := tellTime; ; waited += tellTime {
		if told, err := within(ctx, exit, tellTime); told || err != nil {
			return err
		}
		c := l.await(ctx)
		if waited < lastTell && c != nil && answers(ctx, l, c) {
			continue
		}
		err := l.replace(ctx, c, ReplacedStop)
		if err == nil {
			if told, err := within(ctx, exit, successorTime); told || err != nil {
				return err
			}
		}
		return errors.Join(judge(ctx, l, ctr), ctx.Err())
	}
}

// closed reports whether a channel is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// within reports whether a channel is closed within d. The error is that of ctx.
func within(ctx context.Context, c <-chan struct{}, d time.Duration) (bool, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-timer.C:
		return false, nil
	}
}

// awaitEnd waits until a container's first process has ended, or its exit is known. Of one in a sandbox only the exit
// tells, or the sandbox's own end.
func awaitEnd(ctx context.Context, cfg *Config, handles *handles, pod, ctr string) error {
	p, err := cfg.processOf(pod, ctr)
	if err != nil {
		return nil // it has none, or nothing of it is left
	}
	fd, err := handles.process(ctr, p)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	exit := handles.exit(ctr)
	go func() {
		select {
		case <-exit:
			cancel(errKnown)
		case <-ctx.Done():
		}
	}()
	if err := process.Wait(ctx, fd); !errors.Is(err, errKnown) {
		return err
	}
	return nil
}

var errKnown = errors.New("the exit is known")

// answers asks a monitor for what it has not told, and says whether it answers.
func answers(ctx context.Context, l *link, c *client) bool {
	reply, err := c.quick(ctx, wire.Request{Op: wire.Hello, Version: wire.Version})
	if err != nil {
		return false
	}
	l.tellAll(reply.Containers)
	return true
}

// judge tells of a container's end where no monitor does, after it has ended what may be left.
func judge(ctx context.Context, l *link, ctr string) error {
	c, pod := l.cfg, l.pod
	p, _ := c.processOf(pod, ctr)
	e := wire.Exit{Process: p, Code: exitUnknown, Unknown: true, FinishedAt: time.Now().UnixNano()}
	fd, _ := l.handles.process(ctr, p)
	if fd != nil {
		defer fd.Close()
	}
	if known, err := ReadExit(filepath.Join(c.bundle(pod, ctr), exitFile)); err == nil {
		e = wire.Exit{
			Process: known.Process, Code: known.Code, Signal: known.Signal, OOMKilled: known.OOMKilled,
			StartedAt: known.StartedAt.UnixNano(), FinishedAt: known.FinishedAt.UnixNano(), Unknown: known.Unknown,
		}
	} else if status, ok := process.Ending(p.PID, p.StartTime, fd); ok {
		e = exitFrom(p, status)
	}
	if b, err := c.bundleOf(pod, ctr); err == nil && e.StartedAt <= 0 {
		e.StartedAt = b.Started
	}
	clear, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := c.clearContainer(clear, pod, ctr); err != nil {
		return fmt.Errorf("the first process of container %s has ended, and others in its cgroup have not: %w", ctr, err)
	}
	l.exited(ctr, &e)
	return nil
}

// exitUnknown is the exit code of a process of whose end no more is known.
const exitUnknown = 255
