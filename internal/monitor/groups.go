package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// groups are the cgroups in which processes of a container may be.
type groups struct {
	id       string
	tracking string   // the mount point of the tracking hierarchy
	helpers  string   // the directory there with the groups of the container's runtime
	named    []string // directories that the daemon has named

	mu      sync.Mutex // guards cgroup2
	cgroup2 string     // where on the tracking hierarchy its processes are; "" where none of this host is its own
}

// follow notes in which tracking group a process of the container is. known is what was noted before it was started,
// "" where nothing was: a process that runs may have moved into a group below its container's. The error is a lack that
// keeps from looking.
func (g *groups) follow(pid int, known string) error {
	path := known
	if path == "" {
		var err error
		if path, err = pathOf(pid, ""); wire.Lacks(err) {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cgroup2 = path
	return nil
}

// pathOf is cgroup.PathOf, patiently.
func pathOf(pid int, controller string) (path string, err error) {
	return patient(func() (string, error) { return cgroup.PathOf(pid, controller) })
}

func (g *groups) tracked() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cgroup2
}

// own returns the container's own cgroups in all hierarchies, that is, those named after it: others may hold processes
// that are not of the container.
func (g *groups) own() (all []*cgroup.Group) {
	for _, dir := range append([]string{g.tracking + g.tracked()}, g.named...) {
		if strings.Contains(filepath.Base(dir), g.id) {
			all = append(all, cgroup.At(dir))
		}
	}
	return all
}

// all are the container's own cgroups and those in which its runtime runs, where processes of the container stay if
// that runtime leaves the cgroup2 hierarchy alone.
func (g *groups) all() []*cgroup.Group {
	all := g.own()
	subs, _ := os.ReadDir(g.helpers)
	for _, s := range subs {
		if s.IsDir() {
			all = append(all, cgroup.At(filepath.Join(g.helpers, s.Name())))
		}
	}
	return all
}

// kill kills every process in the groups, except the groups for which keep returns true.
func (g *groups) kill(keep func(*cgroup.Group) bool) error {
	var errs []error
	for _, one := range g.all() {
		if !keep(one) {
			errs = append(errs, one.Kill())
		}
	}
	return errors.Join(errs...)
}

// killLeft kills what the first process has left behind, which is nothing when it had a PID namespace of its own. A
// runtime's start may be about to return, and does.
func killLeft(c *container) {
	err := c.groups.kill(func(g *cgroup.Group) bool { return filepath.Base(g.Path()) == startGroup })
	if err != nil {
		logf("kill what %s has left: %v", c.id, err)
	}
}

// clear kills every process of the container and of its creation, and waits until they are gone.
func (g *groups) clear() error {
	for end := time.Now().Add(goneTimeout); ; time.Sleep(2 * time.Millisecond) {
		var left []int
		for _, one := range g.all() {
			pids, err := one.Pids()
			if err == nil && len(pids) > 0 {
				err = one.Kill()
			}
			if err != nil {
				return err
			}
			left = append(left, pids...)
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v do not die of SIGKILL: they hang in the kernel", left)
		}
	}
}
