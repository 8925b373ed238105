package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// Crew starts processes of a program that neither forks nor runs another, many a second. They share one group, made
// once, into which they are born: such a process is gone when it is dead, so that none needs a group to be ended by,
// and making one for each would take as long as their work. They die with this process.
type Crew struct {
	Program string
	// Group is the directory of a cgroup2 hierarchy that they are born into; "" for that of this process.
	Group string
	// Tasks are the directories of cgroup v1 hierarchies that they are born into too.
	Tasks []string
	// Capabilities are the only ones that the processes have.
	Capabilities []int
	// Nice is their priority.
	Nice int
	// Slack is how much later than asked for their timers may fire; 0 for as much as those of this process (prctl(2),
	// PR_SET_TIMERSLACK).
	Slack time.Duration

	mu     sync.Mutex  // guards what follows
	parent *crewParent // nil until one has been started
	closed bool
}

// crewParent is the thread that all processes of a crew are children of.
type crewParent struct {
	crew     *Crew
	group    *os.File // of Crew.Group; the thread's own
	launches chan launch
	closed   chan struct{}
}

type launch struct {
	argv []string
	attr *os.ProcAttr
	done chan<- launched
}

type launched struct {
	process *os.Process
	err     error
}

// Start starts a process with the files as its descriptors, and nothing in its environment but env. The caller waits
// for it.
func (c *Crew) Start(args, env []string, files []*os.File) (*os.Process, error) {
	p, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Program), err)
	}
	attr := &os.ProcAttr{Dir: "/", Env: env, Files: files}
	attr.Sys = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan launched)
	select {
	case p.launches <- launch{append([]string{c.Program}, args...), attr, done}:
		l := <-done
		return l.process, l.err
	case <-p.closed:
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Program), os.ErrClosed)
	}
}

// Close ends the crew, and the processes that are left of it. Their groups can be removed soon after.
func (c *Crew) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parent != nil && !c.closed {
		close(c.parent.closed)
	}
	c.closed = true
}

// open starts the thread that all processes are children of, unless it runs: they have its groups, its priority and no
// capability that it cannot give on. It ends with the crew, since they would die with it. Where it cannot be started,
// as while there are no descriptors, the next call tries again.
func (c *Crew) open() (*crewParent, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, os.ErrClosed
	}
	if c.parent != nil {
		return c.parent, nil
	}
	// What this process has inherited from its parent is not passed on. Before Linux 5.11 there is no such flag.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	p := &crewParent{crew: c, launches: make(chan launch), closed: make(chan struct{})}
	ready := make(chan error)
	go p.serve(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	c.parent = p
	return p, nil
}

func (p *crewParent) serve(ready chan<- error) {
	runtime.LockOSThread() // for good
	if unix.Gettid() == unix.Getpid() {
		// The first thread's groups and capabilities are those that a process is seen to have.
		go p.serve(ready)
		select {}
	}
	defer p.leave()
	err := p.enter()
	if err == nil {
		err = p.crew.become()
	}
	ready <- err
	if err != nil {
		return // and the thread ends
	}
	for {
		select {
		case l := <-p.launches:
			process, err := p.start(l)
			l.done <- launched{process, err}
		case <-p.closed:
			return // and the thread ends, and with it its children
		}
	}
}

// enter opens the group that processes are born into.
func (p *crewParent) enter() error {
	p.leave()
	if p.crew.Group == "" {
		return nil
	}
	group, err := cgroup.At(p.crew.Group).Open()
	if err != nil {
		return err
	}
	p.group = group
	return nil
}

func (p *crewParent) leave() {
	if p.group != nil {
		_ = p.group.Close()
		p.group = nil
	}
}

// start starts a process in the group. If the group was removed, it opens the one that has its name by now.
func (p *crewParent) start(l launch) (*os.Process, error) {
	if p.group != nil {
		process, err := p.startIn(l)
		if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) { // ENOENT may also be about the program
			return process, err
		}
	}
	if err := p.enter(); err != nil {
		return nil, fmt.Errorf("start %s: %w (a restart of the daemon makes its cgroup anew)",
			filepath.Base(p.crew.Program), err)
	}
	return p.startIn(l)
}

func (p *crewParent) startIn(l launch) (*os.Process, error) {
	if p.group != nil {
		l.attr.Sys.UseCgroupFD, l.attr.Sys.CgroupFD = true, int(p.group.Fd())
	}
	return os.StartProcess(p.crew.Program, l.argv, l.attr)
}

// become changes the calling thread to what its children are to be.
func (c *Crew) become() error {
	for _, dir := range c.Tasks {
		err := cgroup.Write(filepath.Join(dir, "tasks"), strconv.Itoa(unix.Gettid()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// They save, and nothing depends on them. A daemon that is nicer still may not raise the priority.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, c.Nice)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(c.Slack), 0, 0, 0)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up further privileges: %w", err)
	}
	return c.limitCapabilities()
}

// limitCapabilities leaves what a program of root gets at exec. The thread keeps what it has itself: it starts
// processes in groups that are the daemon's.
func (c *Crew) limitCapabilities() error {
	keep := map[int]bool{}
	for _, n := range c.Capabilities {
		keep[n] = true
	}
	for n := 0; unix.Prctl(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0) == nil; n++ {
		if keep[n] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", n, err)
		}
	}
	return dropInheritable()
}

// dropInheritable has nothing be inherited beside the bounding set. The calls are raw: those of the library would be
// made in all threads.
func dropInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	_, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("read capabilities: %w", errno)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	_, _, errno = unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop inheritable capabilities: %w", errno)
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}
