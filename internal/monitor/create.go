package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// create runs the runtime's create: afterwards the container's first process exists and waits. When it fails nothing of
// it is left but the directory.
func (m *Monitor) create(ctx context.Context, id string, b wire.Bundle) (wire.Process, error) {
	c := m.newContainer(id, b)
	if err := m.add(c); err != nil {
		return wire.Process{}, err
	}
	err := c.make(ctx)
	if err != nil {
		c.out.close()
		c.mu.Lock()
		c.closeStdin()
		c.mu.Unlock()
		m.drop(id)
		return wire.Process{}, err
	}
	return c.process, nil
}

func (c *container) make(ctx context.Context) error {
	if err := writeJSON(filepath.Join(c.dir, bundleFile), c.bundle); err != nil {
		return err
	}
	theirs, err := c.openStreams()
	defer closeAll(theirs)
	if err != nil {
		return err
	}
	group, err := c.m.makeGroup(c.id)
	if err != nil {
		return err
	}
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(argv, "--log", filepath.Join(c.dir, "runtime.log"), "--log-format", "json",
		"create", "--bundle", c.dir, "--pid-file", filepath.Join(c.dir, "runtime.pid"))
	var tty *console
	if c.bundle.Terminal {
		if tty, err = listenConsole(c.dir); err != nil {
			return err
		}
		defer tty.close()
		argv = append(argv, "--console-socket", consoleSocket)
	}
	argv = append(argv, c.id)
	c.m.reaper.hold()
	defer c.m.reaper.release()
	p := program{argv: argv, dir: c.dir, files: theirs, group: group, log: filepath.Join(c.dir, "runtime.log")}
	if err := c.m.run(ctx, p); err != nil {
		return errors.Join(err, vacate(group))
	}
	if err := c.adoptChild(tty); err != nil {
		return errors.Join(err, vacate(group), c.killCgroup())
	}
	return nil
}

// openStreams makes the container's ends of its standard streams. They are FIFOs in the run directory, which the container
// holds for reading as well as writing: it gets no SIGPIPE when this monitor dies, and another one finds them by name. A
// terminal has none.
func (c *container) openStreams() (theirs [3]int, err error) {
	theirs = noFiles
	if c.bundle.Terminal {
		return theirs, nil
	}
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		if i == 0 && !c.bundle.Stdin {
			continue
		}
		path := filepath.Join(c.dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil && err != unix.EEXIST {
			return theirs, fmt.Errorf("make FIFO %s: %w", path, err)
		}
		if err := c.openStream(i, path, &theirs[i]); err != nil {
			return theirs, fmt.Errorf("open FIFO %s: %w", path, err)
		}
	}
	return theirs, nil
}

func (c *container) openStream(i int, path string, theirs *int) (err error) {
	if i == 0 {
		if c.stdin, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		*theirs, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	}
	if err := c.out.open(i, path); err != nil {
		return err
	}
	*theirs, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return err
}

func closeAll(fds [3]int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// adoptChild takes the process that the runtime made as a child of ours.
func (c *container) adoptChild(tty *console) error {
	data, err := os.ReadFile(filepath.Join(c.dir, "runtime.pid"))
	if err != nil {
		return fmt.Errorf("read the container's pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read the container's pid: %w", err)
	}
	if tty != nil {
		if c.console, err = tty.master(); err != nil {
			return err
		}
		if err := c.out.openFile(1, c.console); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.m.reaper.claim(pid)
	c.process = wire.Process{PID: pid}
	if c.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		c.pidfd = -1 // dead already: ended tells
	} else if c.process.StartTime, err = StartTime(pid); err != nil {
		c.process.StartTime = 0
	}
	c.cgroup2 = cgroup2Of(pid)
	c.oom = watchOOM(pid)
	if err := writeJSON(filepath.Join(c.dir, pidFile), c.process); err != nil {
		return err
	}
	c.state = wire.Created
	go func() {
		e := <-ended
		x := wire.Exit{Code: int32(e.code()), FinishedAt: e.at.UnixNano()}
		if e.status.Signaled() {
			x.Signal = int(e.status.Signal())
		}
		c.ended(x)
	}()
	return nil
}

// start opens the log and lets the process go.
func (c *container) start(ctx context.Context, log *wire.Log) error {
	if err := c.in(wire.Created); err != nil {
		return err
	}
	if err := c.out.logTo(log); err != nil {
		return err
	}
	at := time.Now()
	c.bundle.Log, c.bundle.Started = log, at.UnixNano()
	if err := writeJSON(filepath.Join(c.dir, bundleFile), c.bundle); err != nil {
		return err
	}
	group, err := c.m.makeGroup(c.id, "start")
	if err != nil {
		return err
	}
	defer func() { _ = group.Remove() }()
	c.out.begin()
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(argv, "--log", filepath.Join(c.dir, "runtime.log"), "--log-format", "json", "start", c.id)
	if err := c.m.run(ctx, program{argv: argv, dir: c.dir, files: noFiles, group: group, log: filepath.Join(c.dir, "runtime.log")}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == wire.Created {
		c.state = wire.Running
	}
	c.started = at
	return nil
}

// killCgroup kills everything in the cgroup that the container's processes are in.
func (c *container) killCgroup() error {
	path := c.cgroup2
	if !strings.Contains(path, c.id) { // never a cgroup that is not the container's own
		return c.signal(int(unix.SIGKILL))
	}
	if err := cgroup.At(filepath.Join(c.m.cfg.Tracking, path)).Kill(); err != nil {
		return err
	}
	return c.signal(int(unix.SIGKILL))
}

// cgroup2Of is where on the cgroup2 hierarchy a process is.
func cgroup2Of(pid int) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for _, line := range strings.Split(string(data), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return path
		}
	}
	return ""
}

// StartTime is when a process began, in clock ticks after boot: with the pid, it names a process for ever.
func StartTime(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// statFields are the fields of a process's stat file behind its name, which may itself hold anything: the first is the
// state, the third field of proc(5).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])), nil
}
