package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// groups are the container's own cgroups in all hierarchies, that is, those named after it: one that is not may have
// somebody else's processes.
func (c *container) groups() (all []*cgroup.Group) {
	for _, dir := range append([]string{c.m.cfg.Tracking + c.cgroup2}, c.bundle.Cgroups...) {
		if strings.Contains(filepath.Base(dir), c.id) {
			all = append(all, cgroup.At(dir))
		}
	}
	return all
}

// helpers are the groups in which the container's runtime runs, and where processes of the container stay if that runtime
// leaves the cgroup2 hierarchy alone.
func (c *container) helpers() (all []*cgroup.Group) {
	subs, _ := os.ReadDir(c.m.group(c.id))
	for _, s := range subs {
		if s.IsDir() {
			all = append(all, cgroup.At(filepath.Join(c.m.group(c.id), s.Name())))
		}
	}
	return all
}

// kill kills everything that is in the container.
func (c *container) kill() error {
	if sandboxed(c) {
		return guest{c}.signal(true, int(unix.SIGKILL))
	}
	errs := []error{c.signal(int(unix.SIGKILL))}
	for _, g := range append(c.groups(), c.helpers()...) {
		errs = append(errs, g.Kill())
	}
	return errors.Join(errs...)
}

// killLeft kills what the first process has left behind, which is nothing when it had a PID namespace of its own. A
// runtime's start may be about to return, and does.
func (c *container) killLeft() {
	for _, g := range append(c.groups(), c.helpers()...) {
		if filepath.Base(g.Path()) == "start" {
			continue
		}
		if err := g.Kill(); err != nil {
			complain("kill what %s has left: %v", c.id, err)
		}
	}
}

// clear kills everything that is in the container, and what may be left of its creation, and waits until it is gone.
func (c *container) clear() error {
	for end := time.Now().Add(goneTimeout); ; time.Sleep(2 * time.Millisecond) {
		var left []int
		for _, g := range append(c.groups(), c.helpers()...) {
			pids, err := g.Pids()
			if err == nil && len(pids) > 0 {
				err = g.Kill()
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

// StartTime is when a process, or what is left of it, began, in clock ticks after boot: with the pid, it names a process for ever.
func StartTime(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(f) < 20 {
		return 0, fmt.Errorf("process %d: its stat file makes no sense", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// statFields are the fields of a process's stat file behind its name, which may itself hold anything: the first is the
// state, the third field of proc(5).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])), nil
}
