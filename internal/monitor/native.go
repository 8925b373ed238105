package monitor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
	proc "berth/internal/process"
)

// native is a first process that is one of this host. It is a child of the monitor that has made it; one that takes
// over holds it by its pidfd.
type native struct {
	c *container

	mu     sync.Mutex // guards what follows; taken after the container's
	pidfd  int        // -1 where there is none
	closed bool
}

// inheritTime is how long a monitor that takes over waits for a daemon to hand it the pidfd of a process that is gone.
const inheritTime = 10 * time.Second

func newNative(c *container) *native { return &native{c: c, pidfd: noFile} }

// openTries and openRest are how often, and with which pause, something is tried for which there is no room, mostly for
// a descriptor.
const openTries, openRest = 20, 100 * time.Millisecond

// patiently tries something for two seconds while there is no room for it.
func patiently(do func() error) (err error) {
	for try := range openTries {
		if err = do(); !wire.Lacks(err) {
			return err
		}
		if try < openTries-1 {
			time.Sleep(openRest)
		}
	}
	return err
}

// patient returns, patiently, what get returns.
func patient[T any](get func() (T, error)) (v T, err error) {
	err = patiently(func() error {
		v, err = get()
		return err
	})
	return v, err
}

// openProcess opens a process, patiently, because one that cannot be opened would be taken for one that has ended.
// ESRCH is that it has.
func openProcess(pid int) (fd int, err error) {
	fd, err = patient(func() (int, error) { return unix.PidfdOpen(pid, 0) })
	if err != nil {
		return noFile, err
	}
	return fd, nil
}

// readPid reads, patiently, the pid that a runtime has written to a file.
func readPid(path string) (pid int, err error) {
	data, err := readFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// claimChild claims a process that the runtime has made as a child of the monitor.
func claimChild(c *container, pid int) error {
	n := newNative(c)
	ended := c.m.reaper.claim(pid)
	p := wire.Process{PID: pid}
	switch fd, err := openProcess(pid); err {
	case nil:
		n.pidfd = fd
		if p.StartTime, err = proc.Start(pid); wire.Lacks(err) {
			n.close()
			return fmt.Errorf("hold the container's process: %w", err)
		}
	case unix.ESRCH: // it is dead already: ended tells
	default:
		return fmt.Errorf("hold the container's process: pidfd_open: %w", err)
	}
	if err := c.groups.follow(pid, ""); err != nil {
		n.close()
		return err
	}
	if err := c.born(p, n, ""); err != nil {
		return err
	}
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

// hold keeps a pidfd, unless there is one, or the process has ended.
func (n *native) hold(fd int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pidfd >= 0 || n.closed {
		return false
	}
	n.pidfd = fd
	return true
}

// held reports whether there is a pidfd, by which the end of the process will be seen.
func (n *native) held() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pidfd >= 0
}

func (n *native) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.pidfd >= 0 {
		_ = unix.Close(n.pidfd)
		n.pidfd = noFile
	}
}

func (n *native) signal(sig int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pidfd < 0 {
		return nil
	}
	err := unix.PidfdSendSignal(n.pidfd, unix.Signal(sig), nil, 0)
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("send signal %d: %w", sig, err)
	}
	return nil
}

func (n *native) kill() error {
	return errors.Join(n.signal(int(unix.SIGKILL)), n.c.groups.kill(func(*cgroup.Group) bool { return false }))
}

func (n *native) startStreams() ([3]int, error) { return noFiles, nil }

func (n *native) started() {}

func (n *native) execArgs(string) []string { return nil }

func (n *native) endExec(string) {}

// takeOver holds a process that another monitor has left, while it lives.
func (n *native) takeOver() (begin func(), err error) {
	c := n.c
	fd, err := n.find()
	if wire.Lacks(err) {
		return nil, fmt.Errorf("hold its process: %w", err)
	}
	if err != nil {
		if err != unix.ESRCH {
			logf("take over %s: pidfd_open: %v", c.id, err)
		}
		c.oom.watchLeft(c.bundle.Cgroups, c.id)
		return func() { go n.awaitInheritance() }, nil
	}
	n.pidfd = fd
	if err := c.groups.follow(c.process.PID, c.bundle.Tracked); err != nil {
		return nil, err
	}
	if c.state == wire.Created { // it is noted with the start
		c.bundle.Tracked = c.groups.tracked()
	}
	if c.oom = watchOOM(c.process.PID, c.id, ""); !c.oom.whole { // its process may have ended, which is in no cgroup then
		c.oom.watchLeft(c.bundle.Cgroups, c.id)
	}
	if err := takeOverExecs(c); err != nil {
		return nil, err
	}
	return func() { go n.watch(fd) }, nil
}

// find opens the process by its pid, patiently. The error is ESRCH when it is gone, or another process has its pid by
// now.
func (n *native) find() (pidfd int, err error) {
	fd, err := openProcess(n.c.process.PID)
	if err != nil {
		return noFile, err
	}
	at, err := patient(func() (uint64, error) { return proc.Start(n.c.process.PID) })
	if err == nil && at == n.c.process.StartTime {
		return fd, nil
	}
	_ = unix.Close(fd)
	if wire.Lacks(err) { // as for the file that it reads
		return noFile, err
	}
	return noFile, unix.ESRCH
}

// watch waits for the end of a process that is not a child.
func (n *native) watch(pidfd int) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			logf("watch %s: %v", n.c.id, err)
			return
		}
		if p[0].Revents != 0 {
			break
		}
	}
	n.c.ended(exitOf(n.c.process, pidfd))
}

// awaitInheritance gives a daemon the time to hand over a pidfd, and then reports that the end was not seen.
func (n *native) awaitInheritance() {
	time.Sleep(inheritTime)
	n.unseen()
}

// unseen reports that the end of the process was not seen, unless there is a pidfd that tells.
func (n *native) unseen() {
	if !n.held() && n.c.alive() {
		n.c.ended(unknownExit())
	}
}

// inherit takes the pidfd, and the terminal's master, that the daemon has held. No descriptor is that it holds none.
func (n *native) inherit(fds []int) error {
	if len(fds) == 0 {
		go n.unseen()
		return nil
	}
	if len(fds) > 1 {
		if err := n.c.takeTerminal(fds[1]); err != nil {
			_ = unix.Close(fds[0])
			return err
		}
	}
	if n.c.over() || !n.hold(fds[0]) {
		return unix.Close(fds[0])
	}
	go n.watch(fds[0])
	return nil
}
