package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	groups groups
	execs  execs
	out    *output
	starts chan struct{} // held by the start that is under way

	mu      sync.Mutex // guards what follows
	state   string     // wire.Created, Running or Exited; "" while it is being created
	process wire.Process
	how     process // how the first process is reached
	started time.Time
	exit    *wire.Exit
	oom     oomCounter
	stdin   int      // our end, which keeps the container from seeing the end of its input; -1 when closed
	console *os.File // a terminal's master
	ending  bool     // its end has been seen
}

func (m *Monitor) newContainer(id string, b wire.Bundle) *container {
	c := &container{m: m, id: id, dir: m.dir(id), bundle: b, stdin: -1, starts: make(chan struct{}, 1)}
	c.groups.id, c.groups.named = id, b.Cgroups
	c.groups.tracking, c.groups.helpers = m.cfg.Tracking, m.group(id)
	c.execs.turns, c.execs.used = newTurns(execTurns), map[int]bool{}
	c.how = newNative(c)
	c.oom = oomCounter{own: -1, pod: -1}
	c.out = newOutput(m, id)
	return c
}

// first returns the container's first process.
func (c *container) first() process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.how
}

// born notes the first process of a container that was created. sandbox is the container in whose sandbox the process
// is, "" if it is a process of this host.
func (c *container) born(p wire.Process, how process, sandbox string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process, c.how, c.bundle.Tracked = p, how, c.groups.tracked()
	c.oom = watchOOM(p.PID, c.id, sandbox)
	if sandbox != "" {
		c.bundle.Sandbox = sandbox
		if err := saveLocked(c); err != nil { // before the pid: with that another monitor takes it up
			return err
		}
	}
	if err := writeJSON(filepath.Join(c.dir, pidFile), &c.process); err != nil {
		return err
	}
	c.state = wire.Created
	return nil
}

// release closes what is open for a container that could not be created.
func (c *container) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	closeStdinLocked(c)
	c.oom.close()
	c.how.close()
	if c.console != nil {
		_ = c.console.Close()
		c.console = nil
	}
}

// begun notes when the process is started, just before it is: it may have ended before the runtime returns. The zero
// time says that it was not started. again says that a start was noted before: the program that the process executed
// then is kept, for the process may execute its own program by now. The program of a process in a sandbox never
// changes, and shows nothing.
func (c *container) begun(log *wire.Log, at time.Time) (again bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != wire.Created {
		return false, nil
	}
	again = c.bundle.Init != "" && c.bundle.Sandbox == ""
	c.started, c.bundle.Log, c.bundle.Started = at, log, 0
	if !at.IsZero() {
		if !again {
			c.bundle.Init = executableOf(c.process.PID)
		}
		c.bundle.Started = at.UnixNano()
	}
	return again, saveLocked(c)
}

// runs notes that the process was started.
func (c *container) runs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != wire.Created {
		return
	}
	c.state, c.bundle.Init = wire.Running, "" // for a process in a sandbox executes the same for ever
	if err := saveLocked(c); err != nil {
		logf("note that %s was started: %v", c.id, err)
	}
}

func (c *container) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state != wire.Exited
}

// over reports whether the container's end has been seen.
func (c *container) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending || c.state == wire.Exited
}

// waits reports whether the container is neither started nor being started.
func (c *container) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == wire.Created && c.started.IsZero()
}

// ownProcess is the process of this host that a living container has.
func ownProcess(c *container) (wire.Process, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process, c.bundle.Sandbox == "" && !c.ending && (c.state == wire.Created || c.state == wire.Running)
}

// wasStarted reports whether the process was started. It may have ended since.
func wasStarted(c *container) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == wire.Running || c.state == wire.Exited && !c.started.IsZero()
}

// beginning is the program that a container's process executed before it was started, its id, and its exit if it has
// ended.
func beginning(c *container) (init string, pid int, exit *wire.Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bundle.Init, c.process.PID, c.exit
}

// entry returns the container's entry of an inventory; there is none while it is being created.
func (c *container) entry() (wire.Container, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := wire.Container{
		ID: c.id, State: c.state, Process: c.process, Exit: c.exit, Terminal: c.bundle.Terminal,
		StdinOnce: c.bundle.StdinOnce && c.bundle.Stdin && !c.bundle.StdinClosed,
	}
	if !c.started.IsZero() {
		e.Started = c.started.UnixNano()
	}
	return e, c.state != ""
}

// in reports whether the container is in one of the states, and in which it is otherwise.
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
	e.OOMKilled = c.oom.explains(e)
	c.mu.Unlock()
	e.Draining = true
	_ = fault.At("monitor.exit.before")
	recordExit(c, &e)
	_ = fault.At("monitor.exit.after")
	finish(c, e)
}

// recordExit writes an exit to the exit file. While the output drains, the exit is not told yet; a monitor that takes
// over tells it.
func recordExit(c *container, e *wire.Exit) {
	if err := writeJSON(filepath.Join(c.dir, exitFile), e); err != nil {
		logf("record the exit of %s: %v", c.id, err)
	}
}

// finish ends what is left of a container whose first process has ended, lets the output run dry, and tells the daemon.
func finish(c *container, e wire.Exit) {
	killLeft(c)
	c.out.drain()
	_ = fault.At("monitor.exit.drained")
	e.Draining = false
	recordExit(c, &e)
	c.mu.Lock()
	c.state, c.exit = wire.Exited, &e
	c.oom.close()
	c.how.close()
	closeStdinLocked(c)
	c.mu.Unlock()
	if !c.m.tell(c.id, &e) {
		fold(c, e)
	}
}

// fold writes an exit to where it outlives the boot, because no daemon listens that would.
func fold(c *container, e wire.Exit) {
	path := filepath.Join(c.m.cfg.Exits, c.id)
	err := writeJSON(path, &e)
	if err == nil {
		err = syncFiles(path, c.m.cfg.Exits)
	}
	if err != nil {
		logf("keep the exit of %s for the next boot: %v", c.id, err)
	}
}

// endStdin closes the container's input for good.
func (c *container) endStdin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bundle.StdinClosed = true
	closeStdinLocked(c)
	return saveLocked(c)
}

// saveLocked writes what a monitor that takes over needs.
func saveLocked(c *container) error { return writeJSON(filepath.Join(c.dir, bundleFile), &c.bundle) }

// closeStdinLocked closes the container's input.
func closeStdinLocked(c *container) {
	if c.stdin >= 0 {
		_ = unix.Close(c.stdin)
		c.stdin = -1
	}
}

// terminal is the master of the container's terminal, as a descriptor of its own: the container may end before it is
// sent.
func (c *container) terminal() ([]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.console == nil {
		return nil, fmt.Errorf("container %s has no terminal", c.id)
	}
	rc, err := c.console.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	err = rc.Control(func(u uintptr) { fd, dupErr = unix.FcntlInt(u, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, dupErr); err != nil {
		return nil, fmt.Errorf("container %s: its terminal: %w", c.id, err)
	}
	return []int{fd}, nil
}

// takeTerminal takes the terminal's master, which the daemon has held while there was no monitor.
func (c *container) takeTerminal(fd int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.console != nil || c.state == wire.Exited {
		return unix.Close(fd)
	}
	_ = unix.SetNonblock(fd, true)
	c.console = os.NewFile(uintptr(fd), consoleName)
	c.out.openFile(1, c.console)
	if c.state == wire.Running { // else start begins to read
		c.out.resume()
	}
	return nil
}

// forget closes everything that is open for the container.
func (c *container) forget() error {
	if c.alive() {
		return fmt.Errorf("container %s is alive", c.id)
	}
	c.out.close()
	c.mu.Lock()
	console := c.console
	c.console = nil
	c.mu.Unlock()
	if console != nil {
		go console.Close() // it waits for who reads it, whom a log's disk that hangs may hold up
	}
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

// logf writes to the monitor's own log, in the pod's run directory.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.RFC3339)+" "+format+"\n", args...)
}
