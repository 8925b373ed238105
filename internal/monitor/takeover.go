package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// takeOver takes up what a monitor of the same directory has left when it was killed. What it lacks for that, such as
// descriptors, it waits for. The error says that it was in vain: this monitor must end then, because a container that
// is taken up in part stays so. The daemon starts the next one after a pause. So nothing is begun, such as to take
// output, before everything is held.
func (m *Monitor) takeOver() error {
	entries, err := readDir(filepath.Join(m.cfg.Dir, "c"))
	if err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	var begins []func()
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		begin, err := takeUp(m, e.Name())
		if err != nil {
			return fmt.Errorf("take over %s: %w", e.Name(), err)
		}
		begins = append(begins, begin)
	}
	for _, begin := range begins {
		begin()
	}
	return nil
}

// nothing is what begins for a container of which nothing goes on.
func nothing() {}

// takeUp takes up one container, if there is one of that name, and returns what begins then.
func takeUp(m *Monitor, id string) (begin func(), err error) {
	c := m.newContainer(id, wire.Bundle{})
	there, err := c.read(pidFile, &c.process)
	if !there || err != nil {
		return nothing, err // never created: the daemon undoes it
	}
	there, err = c.read(bundleFile, &c.bundle)
	if err != nil {
		return nil, err
	}
	if !there {
		logf("take over %s: it is left out, without a bundle that says what it is", id)
		return nothing, nil
	}
	c.groups.named = c.bundle.Cgroups
	if c.bundle.Sandbox != "" {
		c.how = &sandboxed{c: c}
	}
	m.containers[id] = c
	return takeOver(c)
}

// read reads one of the container's files, and reports whether it is there. One that makes no sense is not: it makes
// none for the next monitor either.
func (c *container) read(name string, v wire.Object) (there bool, err error) {
	err = readJSON(filepath.Join(c.dir, name), v)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.As(err, new(*fs.PathError)):
		return false, err
	}
	logf("take over %s: %s: %v", c.id, name, err)
	return false, nil
}

func readJSON(path string, v wire.Object) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	return wire.Decode(data, v)
}

// readFile reads a file, patiently.
func readFile(path string) (data []byte, err error) {
	return patient(func() ([]byte, error) { return os.ReadFile(path) })
}

// readDir lists a directory, patiently. One that is not there is empty.
func readDir(path string) (entries []os.DirEntry, err error) {
	entries, err = patient(func() ([]os.DirEntry, error) { return os.ReadDir(path) })
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// takeOver takes up a container that another monitor has left, and returns what begins then. Nobody else has it yet.
func takeOver(c *container) (begin func(), err error) {
	c.state = wire.Created
	if c.bundle.Started > 0 && !stillWaits(c) {
		c.state, c.started = wire.Running, time.Unix(0, c.bundle.Started)
	}
	var exit wire.Exit
	ended, err := c.read(exitFile, &exit)
	if err != nil {
		return nil, err
	}
	if ended {
		c.ending = true
		if !exit.Draining {
			c.state, c.exit = wire.Exited, &exit
		} else if c.bundle.Sandbox == "" && !exit.OOMKilled { // a daemon that wrote it did not look
			c.oom.watchLeft(c.bundle.Cgroups, c.id)
			exit.OOMKilled = c.oom.explains(exit)
		}
	}
	take, err := takeStreams(c)
	if err != nil {
		return nil, err
	}
	watch := nothing
	switch {
	case exit.Draining:
		watch = func() { go finish(c, exit) }
	case !c.ending:
		if watch, err = c.how.takeOver(); err != nil {
			return nil, err
		}
	}
	return func() { take(); watch() }, nil
}

// takeStreams opens our ends of the FIFOs again; who has held them open meanwhile is the container, and the daemon. It
// returns what begins to take from them. Of one whose output has ended nothing is left to take.
func takeStreams(c *container) (begin func(), err error) {
	j, err := patient(func() (*journal, error) { return openJournal(c.dir) })
	if errors.Is(err, os.ErrNotExist) && c.state == wire.Exited {
		return nothing, nil
	}
	if err != nil {
		if j, err = anotherJournal(c, err); err != nil {
			return nil, fmt.Errorf("take up its output: %w", err)
		}
	}
	c.out.log.keep(j)
	if !c.bundle.Terminal { // its master comes from the daemon
		if err := openAgain(c); err != nil {
			return nil, err
		}
	}
	if c.state == wire.Created { // start begins to read
		return nothing, nil
	}
	return func() {
		c.out.log.takeUp(c.bundle.Log)
		c.out.resume()
		if c.state == wire.Exited && c.bundle.Terminal { // and its master may not come any more
			go goOn(c.out.log)
		}
	}, nil
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

// openAgain opens our ends of the FIFOs, patiently.
func openAgain(c *container) error {
	for n, name := range streamNames {
		if n == 0 && (!c.bundle.Stdin || c.bundle.StdinClosed) {
			continue
		}
		path := filepath.Join(c.dir, name)
		err := patiently(func() (err error) {
			if n > 0 {
				return c.out.open(n, path)
			}
			c.stdin, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			return err
		})
		switch {
		case errors.Is(err, os.ErrNotExist): // removed with the container, or by somebody
			logf("take over %s of %s: %v", name, c.id, err)
		case err != nil:
			return fmt.Errorf("open FIFO %s: %w", path, err)
		}
	}
	return nil
}
