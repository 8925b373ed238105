package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// Config is what a monitor is started with.
type Config struct {
	Dir      string // the pod's run directory: the sockets, and a directory c/<id> for each container
	Exits    string // where exits go that no daemon was told of
	Tracking string // the mount point of the cgroup2 hierarchy
	Group    string // below it, the groups of this instance's containers
	Listener int    // a listening SOCK_SEQPACKET socket
}

// Monitor is the state of the process.
type Monitor struct {
	cfg    Config
	reaper *reaper

	mu          sync.Mutex // guards what follows; taken before a container's
	containers  map[string]*container
	subscribers map[*conn]struct{}
	ending      bool
	done        chan struct{}

	buf sync.Mutex // guards scratch
	// scratch is the one buffer through which all output goes.
	scratch [64 << 10]byte
	lines   []byte // what is written to a log, made from scratch
}

// Run serves until a daemon tells it to end, and takes over first what an earlier monitor of this directory has left.
func Run(cfg Config) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a child subreaper: %w", err)
	}
	protect()
	m := &Monitor{
		cfg: cfg, reaper: newReaper(), containers: map[string]*container{}, subscribers: map[*conn]struct{}{}, done: make(chan struct{}),
	}
	m.takeOver()
	go m.reaper.run()
	go m.accept()
	<-m.done
	return nil
}

// protect asks the kernel to kill others first. Without CAP_SYS_RESOURCE it may refuse, and then the score stays.
func protect() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0) }

func (m *Monitor) dir(id string) string { return filepath.Join(m.cfg.Dir, "c", id) }

// group is the tracking group of a container: its runtime's helpers, and on some hosts its processes, are in it.
func (m *Monitor) group(id string) string {
	return filepath.Join(m.cfg.Tracking, m.cfg.Group, id)
}

func (m *Monitor) makeGroup(parts ...string) (*cgroup.Group, error) {
	return cgroup.Make(m.cfg.Tracking, filepath.Join(append([]string{m.cfg.Group}, parts...)...))
}

func (m *Monitor) find(id string) (*container, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: this monitor does not hold it", id)
}

func (m *Monitor) add(c *container) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.containers[c.id] != nil {
		return fmt.Errorf("container %s exists already", c.id)
	}
	m.containers[c.id] = c
	return nil
}

func (m *Monitor) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, id)
}

// inventory lists what the monitor holds.
func (m *Monitor) inventory() []wire.Container {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []wire.Container
	for _, c := range m.containers {
		if e, ok := c.entry(); ok {
			all = append(all, e)
		}
	}
	return all
}

// tell gives an exit to every daemon that listens, and says whether one did.
func (m *Monitor) tell(id string, e *wire.Exit) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := false
	for c := range m.subscribers {
		if c.send(&wire.Reply{Container: id, Exit: e}) == nil {
			told = true
		}
	}
	return told
}

// shutdown ends the monitor unless a container lives.
func (m *Monitor) shutdown() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.containers {
		if c.alive() {
			return fmt.Errorf("container %s is alive", c.id)
		}
	}
	if !m.ending {
		m.ending = true
		close(m.done)
	}
	return nil
}
