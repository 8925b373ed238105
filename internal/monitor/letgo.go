package monitor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	proc "berth/internal/process"
)

// A runtime has the process of a container that it makes wait until it is started. Until then the process executes the
// runtime's own program. By that it is told whether it was let go when the runtime that was to do it was killed.

const (
	startGroup = "start"
	startTries = 3 // how often a runtime is asked to start a container when it is killed meanwhile
	// letGoTime is what a process that was let go takes to execute its program, on a node that is not busy. One that
	// takes longer is taken for one that waits, and the runtime is asked again.
	letGoTime = 100 * time.Millisecond
	// loadTime is what a process may take for the same when the runtime has refused to start it, having done so before:
	// its program may be on a slow disk.
	loadTime = 10 * time.Second
)

// killed is the failure of a program that was killed, but not by the monitor.
type killed struct{ error }

// executableOf identifies the program that a process executes, "" where that cannot be seen.
func executableOf(pid int) string {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// letGo has the runtime start the container. If the runtime is killed before it has done so, it is run again. again
// says that it was run before, by a monitor that was killed.
func letGo(ctx context.Context, c *container, p program, again bool) error {
	for try := 1; ; try++ {
		err := askToStart(ctx, c, p, again)
		cut := errors.As(err, new(killed))
		if err == nil || ctx.Err() != nil || !cut && !again {
			return err
		}
		again = true
		within := letGoTime
		if !cut { // it may have been let go the last time, and the runtime refuses to do it twice
			within = loadTime
		}
		if hasBegun(ctx, c, within) {
			return nil
		}
		if !cut || try == startTries {
			return err
		}
	}
}

// askToStart runs the runtime. One that is asked again may wait for ever for a process that was let go before: runc
// does, where the one that was killed had no time to remove its FIFO. It is ended when the process is seen to run.
func askToStart(ctx context.Context, c *container, p program, again bool) error {
	if !again {
		return c.m.run(ctx, p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			if hasBegun(ctx, c, 0) {
				cancel()
			}
		}
	}()
	return c.m.run(ctx, p)
}

// hasBegun reports whether the container's process was let go. One that was just now may take a moment to show it.
func hasBegun(ctx context.Context, c *container, within time.Duration) bool {
	for end := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		init, pid, exit := beginning(c)
		if exit != nil {
			return exit.Signal == 0 // by itself
		}
		if now := executableOf(pid); init != "" && now != "" && now != init {
			return true
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
}

// startGrace is how long a runtime may still take that starts a container for a monitor that was killed. One that is
// ended between telling the process to go and hearing that it does ends the process as well: that writes to a FIFO
// which nobody reads by then.
const startGrace = 2 * time.Second

// stillWaits reports whether a container that another monitor was about to start still waits. What the runtime does for
// that monitor is awaited for startGrace, and then ended.
func stillWaits(c *container) bool {
	p := c.process
	if c.bundle.Init == "" || proc.Gone(p.PID, p.StartTime) || executableOf(p.PID) != c.bundle.Init {
		return false
	}
	group := cgroup.At(filepath.Join(c.m.cfg.Tracking, c.m.cfg.Group, c.id, startGroup))
	ctx, cancel := context.WithTimeout(context.Background(), startGrace)
	_ = group.WaitEmpty(ctx)
	cancel()
	if err := patiently(func() error { return vacate(group) }); err != nil {
		logf("end the start of %s by another monitor: %v", c.id, err)
	}
	_ = group.Remove()
	return !hasBegun(context.Background(), c, letGoTime)
}
