package monitor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// A runtime has the process of a container that it makes wait until it is started. Until then the process executes the
// runtime's own program. By that it is told whether it was let go when the runtime that was to do it was killed.

const (
	startGroup = "start"
	startTries = 3                      // how often a runtime is asked to start a container when it is killed meanwhile
	letGoTime  = 100 * time.Millisecond // what a process that was let go takes at the most to execute its program
)

// killed is the failure of a program that was killed, and not by us.
type killed struct{ error }

// executableOf identifies the program that a process executes, "" where that cannot be seen.
func executableOf(pid int) string {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// letGo has the runtime start the container. One that is killed while it does may have come so far or not: it is
// asked again if not.
func letGo(ctx context.Context, c *container, p program) error {
	for try := 1; ; try++ {
		err := c.m.run(ctx, p)
		cut := errors.As(err, new(killed))
		if err == nil || ctx.Err() != nil || !cut && try == 1 {
			return err
		}
		if hasBegun(c) { // this time, or the last: then it is told that the container runs already
			return nil
		}
		if !cut || try == startTries {
			return err
		}
	}
}

// hasBegun says whether the container's process was let go. One that was just now may take a moment to show it.
func hasBegun(c *container) bool {
	for end := time.Now().Add(letGoTime); ; time.Sleep(time.Millisecond) {
		init, pid, exit := beginning(c)
		if exit != nil {
			return exit.Signal == 0 // by itself
		}
		if now := executableOf(pid); init != "" && now != "" && now != init {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// stillWaits says of a container that another monitor was about to start whether it waits still. What the runtime
// does for that monitor is ended first.
func stillWaits(c *container) bool {
	at, err := StartTime(c.process.PID)
	if c.bundle.Init == "" || err != nil || at != c.process.StartTime || executableOf(c.process.PID) != c.bundle.Init {
		return false
	}
	group := cgroup.At(filepath.Join(c.m.cfg.Tracking, c.m.cfg.Group, c.id, startGroup))
	if err := vacate(group); err != nil {
		logf("end the start of %s by another monitor: %v", c.id, err)
	}
	_ = group.Remove()
	return !hasBegun(c)
}
