package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
	proc "berth/internal/process"
)

// Config is what a monitor is started with.
type Config struct {
	Dir      string // the pod's run directory: the sockets, and a directory c/<id> for each container
	Exits    string // where exits go that no daemon was told of
	Tracking string // the mount point of the cgroup2 hierarchy
	Group    string // below it, the groups of this instance's containers
	Listener int    // a listening SOCK_SEQPACKET socket
	Lock     int    // holds the lock of Dir, below zero where there is none
}

// Monitor is the state of the process.
type Monitor struct {
	cfg    Config
	reaper *reaper
	pace   *pace // of all its threads

	subscribers subscribers

	mu         sync.Mutex // guards what follows; taken before a container's
	containers map[string]*container

	ending sync.Once
	done   chan struct{} // closed when the monitor is to end

	spare  chan *buffer
	drains drainer
	served atomic.Int64 // requests
}

// Run serves until a daemon tells it to end, and takes over first what an earlier monitor of this directory has left.
func Run(cfg Config) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a child subreaper: %w", err)
	}
	keepToOurselves(cfg)
	defaultSignals()
	ignoreSignals()
	ordinarySchedule()
	p := &pace{}
	m := &Monitor{
		cfg: cfg, reaper: newReaper(protect(), p), pace: p, containers: map[string]*container{}, done: make(chan struct{}),
		spare: make(chan *buffer, 1),
	}
	if err := m.introduce(); err != nil {
		return err
	}
	if err := m.takeOver(); err != nil {
		return err
	}
	takeOwed(m)
	go m.reaper.run()
	go m.accept()
	<-m.done
	return nil
}

// keepToOurselves has no program that is started from here inherit what this one was given: a container could reach it.
func keepToOurselves(cfg Config) {
	unix.CloseOnExec(cfg.Listener)
	if cfg.Lock >= 0 {
		unix.CloseOnExec(cfg.Lock)
	}
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) // what else the daemon was given; since Linux 5.11
}

// A first collection costs a process more memory than a pod's whole quiet life leaves behind, and the runtime's own
// would run every two minutes ever after. So the daemon starts a monitor with collection turned off but for a limit,
// and it is done here, a while after so many requests.
const (
	settleAfter = 32
	settleTime  = time.Second
)

// busy counts a request.
func (m *Monitor) busy() {
	if m.served.Add(1)%settleAfter == 0 {
		time.AfterFunc(settleTime, debug.FreeOSMemory)
	}
}

// introduce writes down who serves the directory.
func (m *Monitor) introduce() error {
	began, err := proc.Start(os.Getpid())
	if err != nil {
		return err
	}
	return writeJSON(filepath.Join(m.cfg.Dir, "m.pid"), &wire.Process{PID: os.Getpid(), StartTime: began})
}

const scoreFile, protectedScore = "/proc/self/oom_score_adj", "-999"

// protect asks the kernel to kill others first, and returns the score that they are to have. Without CAP_SYS_RESOURCE
// it may refuse; then the score stays, and "" is returned.
func protect() string {
	old, err := os.ReadFile(scoreFile)
	if err != nil || os.WriteFile(scoreFile, []byte(protectedScore), 0) != nil {
		return ""
	}
	if score := strings.TrimSpace(string(old)); !strings.HasPrefix(score, "-") {
		return score
	}
	return "0"
}

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

// hostOf is the container whose first process is the one that the runtime names for c, and that process; nil where
// none is.
func (m *Monitor) hostOf(c *container, pid int) (*container, wire.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.containers {
		// it may have ended just now, and the pid be another process's
		if p, ok := ownProcess(other); other != c && ok && p.PID == pid && !proc.Gone(pid, p.StartTime) {
			return other, p
		}
	}
	return nil, wire.Process{}
}

// inventory lists what the monitor holds.
func (m *Monitor) inventory() []wire.Container {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []wire.Container
	for _, c := range m.containers {
		if e, ok := c.entry(); ok {
			e.Dropped = c.out.log.total.read()
			all = append(all, e)
		}
	}
	return all
}

// tell gives an exit to every daemon that listens, and says whether one did.
func (m *Monitor) tell(id string, e *wire.Exit) bool {
	return m.subscribers.publish(&wire.Reply{Container: id, Exit: e})
}

// mayEnd refuses the end of the monitor while a container lives.
func (m *Monitor) mayEnd() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.containers {
		if c.alive() {
			return fmt.Errorf("container %s is alive", c.id)
		}
	}
	return nil
}
