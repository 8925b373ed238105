package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// helloTimeout bounds the first answer of a monitor.
const helloTimeout = 10 * time.Second

// link is what the daemon keeps of one pod: the connection to its monitor, and what the next one will need if that is
// killed.
type link struct {
	cfg  *Config
	pod  string
	turn chan struct{} // held while connecting
	done chan struct{} // closed when the pod is shut down

	mu     sync.Mutex // guards what follows
	client *client
	child  int // the monitor's pid, where it is a child of this process
	ended  bool
	held   map[string]holding
	told   map[string]bool // containers whose exit the daemon knows
}

// holding is what a monitor that takes over needs of a container: a pidfd, with which the exit of a process can be asked
// for that is no child, and the master of a terminal. An input that is meant for one client would end if nobody held it.
type holding struct{ pidfd, console, stdin *os.File }

func (h holding) close() {
	for _, f := range []*os.File{h.pidfd, h.console, h.stdin} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func newLink(cfg *Config, pod string) *link {
	return &link{
		cfg: cfg, pod: pod, turn: make(chan struct{}, 1), done: make(chan struct{}), held: map[string]holding{}, told: map[string]bool{},
	}
}

// live is the connection, nil when there is none.
func (l *link) live() *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || l.client.lost() {
		return nil
	}
	return l.client
}

// connect returns what the pod's monitor holds; it starts a monitor when there is none.
func (l *link) connect(ctx context.Context) ([]wire.Container, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("the monitor of pod %s: %w", l.pod, context.Cause(ctx))
	}
	if c := l.live(); c != nil {
		return hello(ctx, c)
	}
	conn, err := dial(l.cfg.dir(l.pod))
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		if err := l.spawn(ctx); err != nil {
			return nil, fmt.Errorf("start the monitor of pod %s: %w", l.pod, err)
		}
		conn, err = dial(l.cfg.dir(l.pod))
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the monitor of pod %s: %w", l.pod, err)
	}
	var c *client
	made := make(chan struct{})
	c = newClient(conn, l.exited, func() { <-made; l.lost(c) })
	close(made)
	list, err := hello(ctx, c)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("the monitor of pod %s: %w", l.pod, err)
	}
	return list, l.join(ctx, c, list)
}

// join begins to use a connection: the monitor is given what is held for it, and what it holds is held from now on. Nobody asks it
// before that: it would say that a container has no terminal which it only has not been given.
func (l *link) join(ctx context.Context, c *client, list []wire.Container) error {
	for _, e := range list {
		if e.State != wire.Exited {
			l.handOver(ctx, c, e)
			l.hold(ctx, c, e)
		}
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		c.end()
		return fmt.Errorf("pod %s has been shut down", l.pod)
	}
	l.client = c
	l.mu.Unlock()
	if c.lost() {
		go l.lost(c)
	}
	return nil
}

// hello subscribes to exits and checks that both sides speak the same protocol.
func hello(ctx context.Context, c *client) ([]wire.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	reply, err := c.call(ctx, wire.Request{Op: wire.Hello, Version: wire.Version, Subscribe: true})
	if err != nil {
		return nil, err
	}
	if reply.Version < wire.Oldest || reply.Version > wire.Version {
		return nil, fmt.Errorf("it speaks protocol version %d, this daemon %d to %d: run the release that started it, or end the pod",
			reply.Version, wire.Oldest, wire.Version)
	}
	c.mu.Lock()
	c.pid = reply.PID
	c.mu.Unlock()
	return reply.Containers, nil
}

// handOver gives a monitor what it cannot find by name. One that has it already, or needs nothing, passes over it.
func (l *link) handOver(ctx context.Context, c *client, e wire.Container) {
	fds, err := l.lend(e.ID)
	if err == nil {
		_, err = c.call(ctx, wire.Request{Op: wire.Inherit, Container: e.ID}, fds...)
		closeFiles(fds)
	}
	if err != nil {
		l.cfg.Log.Warn("a monitor could not take over a container's process", "pod", l.pod, "container", e.ID, "error", err)
	}
}

// lend returns copies of what is held of a container for a monitor that takes over: the container may exit while they are on their
// way, and what was held is closed then.
func (l *link) lend(ctr string) (fds []*os.File, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[ctr]
	for _, f := range []*os.File{h.pidfd, h.console} {
		if f == nil {
			break // a console without a process is of no use
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFiles(fds)
			return nil, fmt.Errorf("copy the descriptor of %s: %w", f.Name(), err)
		}
		fds = append(fds, os.NewFile(uintptr(fd), f.Name()))
	}
	return fds, nil
}

// hold keeps what a monitor that takes over will need of a container.
func (l *link) hold(ctx context.Context, c *client, e wire.Container) {
	l.mu.Lock()
	_, has := l.held[e.ID]
	l.mu.Unlock()
	if has {
		return
	}
	h := holding{pidfd: pidfd(e.Process)}
	if e.Terminal {
		if a, err := c.ask(ctx, wire.Request{Op: wire.Console, Container: e.ID}); err == nil && len(a.fds) == 1 {
			h.console = a.fds[0]
		}
	} else if e.StdinOnce {
		h.stdin, _ = os.OpenFile(filepath.Join(l.cfg.bundle(l.pod, e.ID), "stdin"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.held[e.ID]; has || l.told[e.ID] || l.ended {
		h.close()
		return
	}
	l.held[e.ID] = h
}

// endStdin lets go of the input of a container, so that it can see the end of it.
func (l *link) endStdin(ctr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[ctr]; h.stdin != nil {
		_ = h.stdin.Close()
		h.stdin = nil
		l.held[ctr] = h
	}
}

// exited tells of an exit, once.
func (l *link) exited(ctr string, e *wire.Exit) {
	if l.tell(ctr) {
		l.cfg.OnExit(l.pod, ctr, *exitOf(e))
	}
}

// tell says whether the exit of a container is still to be told, which it is not from here on.
func (l *link) tell(ctr string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[ctr].close()
	delete(l.held, ctr)
	if l.told[ctr] {
		return false
	}
	l.told[ctr] = true
	return true
}

// forget drops all that is kept of a container that is deleted.
func (l *link) forget(ctr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[ctr].close()
	delete(l.held, ctr)
	delete(l.told, ctr)
}

// The pauses between tries to start another monitor for a pod whose monitor was killed.
const firstPause, maxPause = 100 * time.Millisecond, 10 * time.Second

// lost starts another monitor for a pod whose monitor was killed: its containers go on meanwhile.
func (l *link) lost(c *client) {
	l.mu.Lock()
	ours := l.client == c && !l.ended
	if ours {
		l.client = nil
	}
	l.mu.Unlock()
	if !ours {
		return
	}
	l.cfg.Log.Warn("a pod's monitor was lost; another one takes over", "pod", l.pod)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.recover()
		if err == nil {
			return
		}
		select {
		case <-l.done:
			return
		case <-time.After(pause):
			l.cfg.Log.Error("no monitor can take over: the pod's containers run on, unwatched; it is tried again", "pod", l.pod, "error", err)
		}
	}
}

// recover finds or starts the monitor that takes over, and tells of the exits meanwhile.
func (l *link) recover() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := l.connect(ctx)
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.State == wire.Exited && e.Exit != nil {
			l.exited(e.ID, e.Exit)
		}
	}
	return nil
}

// shut ends the use of the link, and returns the connection if there is one.
func (l *link) shut() *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.done)
	}
	for ctr, h := range l.held {
		h.close()
		delete(l.held, ctr)
	}
	return l.client
}

// reap takes the status of a monitor that has ended, where it was a child of this process.
func (l *link) reap(how int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.child == 0 {
		return
	}
	if pid, err := unix.Wait4(l.child, nil, how, nil); pid > 0 || err == unix.ECHILD {
		l.child = 0
	}
}

// pidfd opens a process so that its end can be asked for whoever is its parent.
func pidfd(p wire.Process) *os.File {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return nil
	}
	if began, err := startTime(p.PID); err != nil || began != p.StartTime {
		_ = unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

// startTime is when a process, or what is left of it, began.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("process %d: its stat file makes no sense", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}
