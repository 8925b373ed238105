package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// takeOver takes up what a monitor of the same directory has left when it was killed.
func (m *Monitor) takeOver() {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Dir, "c"))
	if err != nil {
		return
	}
	for _, e := range entries {
		c := m.newContainer(e.Name(), wire.Bundle{})
		if readJSON(filepath.Join(c.dir, pidFile), &c.process) != nil {
			continue // never created: the daemon undoes it
		}
		if err := readJSON(filepath.Join(c.dir, bundleFile), &c.bundle); err != nil {
			logf("take over %s: %v", c.id, err)
			continue
		}
		c.groups.named = c.bundle.Cgroups
		if c.bundle.Sandbox != "" {
			c.how = &sandboxed{c: c}
		}
		m.containers[c.id] = c
		takeOver(c)
	}
}

func readJSON(path string, v wire.Object) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return wire.Decode(data, v)
}

// takeOver takes up a container that another monitor has left. Nobody else has it yet.
func takeOver(c *container) {
	c.state = wire.Created
	if c.bundle.Started > 0 && !stillWaits(c) {
		c.state, c.started = wire.Running, time.Unix(0, c.bundle.Started)
	}
	var exit wire.Exit
	if readJSON(filepath.Join(c.dir, exitFile), &exit) == nil {
		c.ending = true
		if !exit.Draining {
			c.state, c.exit = wire.Exited, &exit
		} else if c.bundle.Sandbox == "" && !exit.OOMKilled { // a daemon that wrote it did not look
			c.oom.watchLeft(c.bundle.Cgroups, c.id)
			exit.OOMKilled = c.oom.explains(exit)
		}
	}
	takeStreams(c)
	if c.ending {
		if exit.Draining {
			go finish(c, exit)
		}
		return
	}
	c.how.takeOver()
}

// takeStreams opens our ends of the FIFOs again; who has held them open meanwhile is the container, and the daemon. Of
// one whose output has ended nothing is left to take.
func takeStreams(c *container) {
	j, err := openJournal(c.dir)
	if errors.Is(err, os.ErrNotExist) && c.state == wire.Exited {
		return
	}
	if err != nil {
		if j, err = anotherJournal(c, err); err != nil {
			logf("take over %s: its output is not read: %v", c.id, err)
			return
		}
	}
	c.out.log.keep(j)
	if !c.bundle.Terminal { // its master comes from the daemon
		openAgain(c)
	}
	if c.state != wire.Created { // else start begins to read
		c.out.log.takeUp(c.bundle.Log)
		c.out.resume()
		if c.state == wire.Exited && c.bundle.Terminal { // and its master may not come any more
			go goOn(c.out.log)
		}
	}
}

// anotherJournal makes the journal of a container whose own could not be opened. One that cannot be opened just now, as
// for want of memory, stays as it is: the next monitor writes what is in there.
func anotherJournal(c *container, why error) (j *journal, err error) {
	unread := errors.Is(why, errLayout)
	if unread {
		logf("take over %s: %v", c.id, why)
	}
	if unread || errors.Is(why, os.ErrNotExist) { // one of an earlier release has made none
		if j, why = makeJournal(c.dir); why == nil {
			return j, nil
		}
	}
	logf("take over %s: a monitor that is killed will lose output: %v", c.id, why)
	return memoryJournal()
}

// openAgain opens our ends of the FIFOs.
func openAgain(c *container) {
	for n := 1; n <= 2; n++ {
		if err := c.out.open(n, filepath.Join(c.dir, streamNames[n])); err != nil {
			logf("take over %s of %s: %v", streamNames[n], c.id, err)
		}
	}
	if c.bundle.Stdin && !c.bundle.StdinClosed {
		if fd, err := unix.Open(filepath.Join(c.dir, "stdin"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			c.stdin = fd
		}
	}
}
