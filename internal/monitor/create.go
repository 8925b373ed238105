package monitor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// create runs the runtime's create: afterwards the container's first process exists and waits. When it fails nothing of
// it is left but the directory.
func (m *Monitor) create(ctx context.Context, id string, b wire.Bundle) (p wire.Process, err error) {
	c := m.newContainer(id, b)
	if err := m.add(c); err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			c.out.close()
			c.release()
			m.drop(id)
		}
	}()
	call := createCall{theirs: noFiles}
	defer call.close()
	if err := prepare(c, &call); err != nil {
		return p, err
	}
	m.reaper.hold()
	defer m.reaper.release()
	if err = m.run(ctx, call.program); err == nil {
		err = claimProcess(c, call.tty)
	}
	if err != nil {
		return p, errors.Join(err, c.groups.clear())
	}
	return c.process, nil
}

// createCall is one call of the runtime's create, with what is open only for it.
type createCall struct {
	program
	theirs [3]int   // the container's ends of its streams
	tty    *console // where its terminal comes from, nil without one
}

// close closes what prepare has opened. The group is kept if processes of the container stay in it.
func (p *createCall) close() {
	if p.tty != nil {
		p.tty.close()
	}
	if p.group != nil {
		_ = p.group.Remove()
	}
	closeAll(p.theirs)
}

// prepare makes everything that the runtime's create needs.
func prepare(c *container, p *createCall) (err error) {
	if err := writeJSON(filepath.Join(c.dir, bundleFile), &c.bundle); err != nil {
		return err
	}
	j, err := makeJournal(c.dir)
	if err != nil {
		return err
	}
	c.out.log.keep(j)
	if p.theirs, err = openStreams(c); err != nil {
		return err
	}
	if p.group, err = c.m.makeGroup(c.id, "create"); err != nil {
		return err
	}
	p.dir, p.log = c.dir, filepath.Join(c.dir, "runtime.log")
	p.argv = append([]string{c.bundle.Runtime}, c.bundle.Args...)
	p.argv = append(p.argv, "--log", p.log, "--log-format", "json",
		"create", "--bundle", c.dir, "--pid-file", filepath.Join(c.dir, "runtime.pid"))
	if c.bundle.Terminal {
		if p.tty, err = listenConsole(c.dir); err != nil {
			return err
		}
		p.argv = append(p.argv, "--console-socket", consoleSocket)
	}
	p.argv = append(p.argv, c.id)
	p.files, p.own = give(c, p.theirs), true
	return nil
}

// openStreams makes the container's ends of its standard streams. They are FIFOs in the run directory, which the
// container holds for reading as well as writing: it gets no SIGPIPE when this monitor dies, and another one finds
// them by name. A terminal has none.
func openStreams(c *container) (theirs [3]int, err error) {
	theirs = noFiles
	if c.bundle.Terminal {
		return theirs, nil
	}
	for i, name := range streamNames {
		if i == 0 && !c.bundle.Stdin {
			continue
		}
		path := filepath.Join(c.dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil && err != unix.EEXIST {
			return theirs, fmt.Errorf("make FIFO %s: %w", path, err)
		}
		if i == 0 {
			c.stdin, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		} else {
			err = c.out.open(i, path)
		}
		if err == nil {
			theirs[i], err = theirEnd(c, i)
		}
		if err != nil {
			return theirs, fmt.Errorf("open FIFO %s: %w", path, err)
		}
	}
	return theirs, nil
}

// theirEnd opens the container's end of one of its streams.
func theirEnd(c *container, i int) (int, error) {
	how := unix.O_RDWR // it goes on when this monitor dies
	if i == 0 && c.bundle.StdinOnce {
		how = unix.O_RDONLY // it is to see the end; the daemon keeps it from that when this monitor dies
	}
	fd, err := unix.Open(filepath.Join(c.dir, streamNames[i]), how|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return noFile, err
	}
	return fd, unix.SetNonblock(fd, false)
}

func closeAll(fds [3]int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// claimProcess claims the process that the runtime has made: a child of the monitor, or one in the sandbox of another
// container.
func claimProcess(c *container, tty *console) error {
	pid, err := readPid(filepath.Join(c.dir, "runtime.pid"))
	if err != nil {
		return fmt.Errorf("read the container's pid: %w", err)
	}
	if tty != nil {
		if c.console, err = tty.master(); err != nil {
			return err
		}
		c.out.openFile(1, c.console)
	}
	if host, p := c.m.hostOf(c, pid); host != nil {
		return c.born(p, &sandboxed{c: c}, host.id)
	}
	return claimChild(c, pid)
}

// start opens the log and starts the process. Only one start goes on at a time, because the next daemon repeats the
// request if one was killed while it was under way, as when the log is on a disk that hangs. A process that was started
// already is not started twice.
func (c *container) start(ctx context.Context, log *wire.Log) error {
	select {
	case c.starts <- struct{}{}:
		defer func() { <-c.starts }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if wasStarted(c) {
		return nil
	}
	if err := c.in(wire.Created); err != nil {
		return err
	}
	if err := c.out.log.to(log); err != nil {
		return err
	}
	group, err := c.m.makeGroup(c.id, startGroup)
	if err != nil {
		return err
	}
	defer func() { _ = group.Remove() }()
	first := c.first()
	files, err := first.startStreams()
	defer closeAll(files)
	if err != nil {
		return err
	}
	again, err := c.begun(log, time.Now())
	if err != nil {
		_, _ = c.begun(log, time.Time{})
		return err
	}
	if again { // by now the process may have been let go, and have written
		c.out.resume()
	} else {
		c.out.begin()
	}
	argv := append([]string{c.bundle.Runtime}, c.bundle.Args...)
	argv = append(argv, "--log", filepath.Join(c.dir, "runtime.log"), "--log-format", "json", "start", c.id)
	start := program{argv: argv, dir: c.dir, files: files, own: true, group: group,
		log: filepath.Join(c.dir, "runtime.log")}
	if err := letGo(ctx, c, start, again); err != nil {
		_, _ = c.begun(log, time.Time{})
		return err
	}
	c.runs()
	first.started()
	return nil
}
