package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/internal/cgroup"
)

// MonitorScope is the scope of the monitors of one Berth, <instance>-monitors.scope in its slice. systemd removes a
// scope when its last process ends, and makes one only around a process that exists. All fields are required.
type MonitorScope struct {
	Manager  *Manager
	Instance string
	Mount    string // of the cgroup2 hierarchy
	Holder   string // the program berth-monitor, whose hold mode does nothing

	mu       sync.Mutex // held while the scope is made
	checking sync.Mutex // held while it is looked up in systemd; taken before mu
}

// longestPause is the longest between two looks at a scope that is on its way out.
const longestPause = 200 * time.Millisecond

// holdTimeout bounds the making of the monitors' scope.
const holdTimeout = 30 * time.Second

// Group is the cgroup below which the monitors live, from the mount point of the hierarchy and without a slash before
// it.
func (s *MonitorScope) Group() string {
	path, err := cgroup.ScopePath(ownSlice(s.Instance) + ":" + s.Instance + ":monitors")
	if err != nil {
		panic("systemd: " + err.Error())
	}
	return strings.TrimPrefix(path, "/")
}

func (s *MonitorScope) name() string { return filepath.Base(s.Group()) }

func (s *MonitorScope) cgroup() *cgroup.Group { return cgroup.At(filepath.Join(s.Mount, s.Group())) }

// Hold makes the scope if it is not there, and keeps it from vanishing until release is called: by then a monitor
// should have been started in it.
func (s *MonitorScope) Hold(ctx context.Context) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cgroup().Populated() {
		// The last monitor in it may be ending at this moment. Then systemd lets go of the scope, and what is started
		// in its cgroup lives in nobody's, until it is taken up again.
		return func() { go s.confirm() }, nil
	}
	return s.make(ctx)
}

// confirm makes sure that systemd knows the scope in which a monitor has just been started.
func (s *MonitorScope) confirm() {
	if !s.checking.TryLock() {
		return
	}
	defer s.checking.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), holdTimeout)
	defer cancel()
	name := s.name()
	if known, err := s.Manager.active(ctx, name); known || err != nil || !s.cgroup().Populated() {
		return // a systemd that cannot be asked now is asked when the next monitor starts
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if release, err := s.make(ctx); err == nil {
		release()
	}
}

// make makes the scope around a process that does nothing. A cgroup that is there already, with what is in it, becomes
// the scope's. With mu held.
func (s *MonitorScope) make(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	h, err := startHolder(s.Holder)
	if err != nil {
		return nil, err
	}
	if err := s.makeAround(ctx, h.pid()); err != nil {
		h.end()
		return nil, err
	}
	return h.end, nil
}

func (s *MonitorScope) makeAround(ctx context.Context, pid uint32) error {
	name := s.name()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		err := s.Manager.startScope(ctx, name, s.properties(pid))
		if err == nil {
			return s.await(ctx, pid)
		}
		if !errors.Is(err, errExists) {
			return err
		}
		// It is the one before, on its way out; one that failed would stay.
		if err := s.Manager.forget(ctx, name); err != nil {
			return err
		}
		known, _ := s.Manager.active(ctx, name)
		if known && s.cgroup().Populated() {
			return nil
		}
		// If the process that it was to be made around died before it was in it (with its daemon, say), systemd waits
		// for ever for the end of a process that never came.
		if known && pause == longestPause {
			if err := s.Manager.stop(ctx, name); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("systemd does not let go of the old %s: %w", name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// lastWords is how long the monitors live when the machine goes down and all containers have ended: they record how.
const lastWords = time.Second

// kubeSlice holds the slices of the pods of a kubelet, unless it was told to have them elsewhere.
const kubeSlice = "kubepods.slice"

// properties of the monitors' scope. When the machine goes down the monitors end after the containers. They pass over
// SIGTERM, so it is the timeout that ends them.
func (s *MonitorScope) properties(pid uint32) []property {
	return []property{
		set("Description", "Monitors of Berth's pods"),
		set("Slice", ownSlice(s.Instance)),
		set("PIDs", []uint32{pid}),
		set("Delegate", true),
		set("DefaultDependencies", false),
		set("Before", []string{kubeSlice, podsSlice(s.Instance)}),
		set("TimeoutStopUSec", uint64(lastWords.Microseconds())),
		set("CollectMode", "inactive-or-failed"),
		set("TasksMax", uint64(math.MaxUint64)),
	}
}

// await waits until systemd has put a process into the scope. It asks the process, not the scope, whose cgroup may be
// on its way out or in.
func (s *MonitorScope) await(ctx context.Context, pid uint32) error {
	for ; ; time.Sleep(time.Millisecond) {
		dir, err := cgroup.Of(s.Mount, int(pid))
		if err != nil {
			return err
		}
		if dir == s.cgroup().Path() {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("systemd has not made %s: %w: see `systemctl status %s`", s.Group(), ctx.Err(), s.name())
		}
	}
}

// holder is a process that does nothing until its standard input ends, which it does with the daemon, too.
type holder struct {
	cmd *exec.Cmd
	in  io.Closer
}

func startHolder(program string) (*holder, error) {
	cmd := exec.Command(program, "hold")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a process for the monitors' scope: %w", err)
	}
	return &holder{cmd, in}, nil
}

func (h *holder) pid() uint32 { return uint32(h.cmd.Process.Pid) }

func (h *holder) end() {
	_ = h.in.Close()
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}
