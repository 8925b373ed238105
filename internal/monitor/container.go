package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/fault"
	"berth/internal/monitor/wire"
)

// The files of a container in its run directory.
const (
	bundleFile = "bundle" // wire.Bundle, for a monitor that takes over
	pidFile    = "pid"    // wire.Process
	exitFile   = "exit"   // wire.Exit
)

// container is one container of the pod.
type container struct {
	m      *Monitor
	id     string
	dir    string
	bundle wire.Bundle
	starts chan struct{} // held by the start that is under way

	mu      sync.Mutex // guards what follows
	state   string     // wire.Created, Running or Exited; "" while it is being created
	process wire.Process
	pidfd   int
	started time.Time
	exit    *wire.Exit
	oom     oomCounter
	cgroup2 string // where on the tracking hierarchy its processes are
	out     *output
	stdin   int      // our end, which keeps the container from seeing the end of its input; -1 when closed
	console *os.File // a terminal's master
	ending  bool     // its end has been seen
	execs   int
	left    []*cgroup.Group // of execs that have ended, with what they have left
	calls   int             // of the runtime, beside a guest
}

func (m *Monitor) newContainer(id string, b wire.Bundle) *container {
	c := &container{m: m, id: id, dir: m.dir(id), bundle: b, pidfd: -1, stdin: -1, starts: make(chan struct{}, 1)}
	c.oom = oomCounter{own: -1, pod: -1}
	c.out = newOutput(m, id)
	return c
}

func (c *container) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state != wire.Exited
}

// wasStarted says whether the process was let go. It may have ended since.
func wasStarted(c *container) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == wire.Running || c.state == wire.Exited && !c.started.IsZero()
}

// beginning is what a container's process executed before it was let go, its id, and its end if it has come.
func beginning(c *container) (init string, pid int, exit *wire.Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bundle.Init, c.process.PID, c.exit
}

// entry is the container's line in an inventory; none while it is being created.
func (c *container) entry() (wire.Container, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := wire.Container{
		ID: c.id, State: c.state, Process: c.process, Exit: c.exit, Terminal: c.bundle.Terminal, StdinOnce: c.bundle.StdinOnce && c.bundle.Stdin && !c.bundle.StdinClosed,
	}
	if !c.started.IsZero() {
		e.Started = c.started.UnixNano()
	}
	return e, c.state != ""
}

// in says whether the container is in one of the states, and in which it is otherwise.
func (c *container) in(states ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range states {
		if c.state == s {
			return nil
		}
	}
	return fmt.Errorf("container %s is %s", c.id, c.state)
}

// signal sends a signal to the container's first process. One that has ended needs none.
func (c *container) signal(sig int) error {
	if sandboxed(c) {
		return guest{c}.signal(false, sig)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == wire.Exited || c.pidfd < 0 {
		return nil
	}
	err := unix.PidfdSendSignal(c.pidfd, unix.Signal(sig), nil, 0)
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("send signal %d: %w", sig, err)
	}
	return nil
}

// ended records the end of the container's first process.
func (c *container) ended(e wire.Exit) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	c.ending = true
	e.Process = c.process
	if !c.started.IsZero() {
		e.StartedAt = c.started.UnixNano()
	}
	e.OOMKilled = !e.Unknown && (e.Signal == int(unix.SIGKILL) || e.Code == 128+int32(unix.SIGKILL)) && c.oom.killed()
	c.mu.Unlock()
	e.Draining = true
	_ = fault.At("monitor.exit.before")
	recordExit(c, &e)
	_ = fault.At("monitor.exit.after")
	finish(c, e)
}

// recordExit writes down an exit. One that is draining is told when the output has run dry: a monitor that takes over
// sees to that.
func recordExit(c *container, e *wire.Exit) {
	if err := writeJSON(filepath.Join(c.dir, exitFile), e); err != nil {
		complain("record the exit of %s: %v", c.id, err)
	}
}

// finish ends what is left of a container whose first process has ended, lets the output run dry, and tells the daemon.
func finish(c *container, e wire.Exit) {
	c.killLeft()
	c.out.drain()
	_ = fault.At("monitor.exit.drained")
	e.Draining = false
	recordExit(c, &e)
	c.mu.Lock()
	c.state, c.exit = wire.Exited, &e
	c.oom.close()
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
		c.pidfd = -1
	}
	c.closeStdin()
	c.mu.Unlock()
	if !c.m.tell(c.id, &e) {
		c.fold(e)
	}
}

// fold writes an exit to where it outlives the boot, since no daemon listens that would.
func (c *container) fold(e wire.Exit) {
	path := filepath.Join(c.m.cfg.Exits, c.id)
	err := writeJSON(path, &e)
	if err == nil {
		err = syncFiles(path, c.m.cfg.Exits)
	}
	if err != nil {
		complain("keep the exit of %s for the next boot: %v", c.id, err)
	}
}

// mostLeft is how many of the cgroups that earlier execs have left are looked at when one ends.
const mostLeft = 16

// removeExecs removes the cgroups of an exec that has ended, and those of earlier ones in which a child lived on. Where
// one still does they stay, for the next exec or the container's end.
func removeExecs(c *container, groups []*cgroup.Group) {
	c.mu.Lock()
	n := min(len(c.left), mostLeft)
	try := append(c.left[:n:n], groups...)
	c.left = c.left[n:]
	c.mu.Unlock()
	var left []*cgroup.Group
	for _, g := range try {
		if errors.Is(g.Remove(), unix.EBUSY) {
			left = append(left, g)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, left...)
}

// endStdin lets the container see the end of its input, for good.
func (c *container) endStdin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bundle.StdinClosed = true
	c.closeStdin()
	return c.save()
}

// save writes down what a monitor that takes over must know. With c.mu held.
func (c *container) save() error { return writeJSON(filepath.Join(c.dir, bundleFile), &c.bundle) }

// closeStdin lets the container see the end of its input. With c.mu held.
func (c *container) closeStdin() {
	if c.stdin >= 0 {
		_ = unix.Close(c.stdin)
		c.stdin = -1
	}
}

// forget lets go of all that is held of the container.
func (c *container) forget() error {
	if c.alive() {
		return fmt.Errorf("container %s is alive", c.id)
	}
	c.out.close()
	c.mu.Lock()
	if c.console != nil {
		_ = c.console.Close()
		c.console = nil
	}
	c.mu.Unlock()
	c.m.drop(c.id)
	return nil
}

// writeJSON replaces a file by rename.
func writeJSON(path string, v wire.Object) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, wire.Encode(v), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func syncFiles(paths ...string) error {
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		err = f.Sync()
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// complain writes to the monitor's own log, which a person finds in the pod's run directory.
func complain(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.RFC3339)+" "+format+"\n", args...)
}
