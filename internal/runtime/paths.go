package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
	"berth/internal/process"
)

func (c *Config) dir(pod string) string { return filepath.Join(c.State, "pods", pod) }

func (c *Config) bundle(pod, ctr string) string { return filepath.Join(c.dir(pod), "c", ctr) }

func (c *Config) exits(pod string) string { return filepath.Join(c.Root, "pods", pod, "exits") }

// monitorGroup is the cgroup of a pod's monitor, and containerGroup the tracking group of a container's helpers.
func (c *Config) monitorGroup(pod string) *cgroup.Group {
	return cgroup.At(filepath.Join(c.Tracking, c.monitorsGroup(), pod))
}

func (c *Config) containerGroup(ctr string) *cgroup.Group {
	return cgroup.At(filepath.Join(c.Tracking, c.containersGroup(), ctr))
}

func (c *Config) containersGroup() string { return filepath.Join(c.Group, "containers") }

func (c *Config) monitorsGroup() string { return filepath.Join(c.Group, "monitors") }

// cgroups are the directories of the container's own cgroup, in all hierarchies. A cgroup that is not named after the
// container may be of another process, too, and does not count.
func (c *Create) cgroups() []string {
	if c.Spec.Linux == nil || c.Spec.Linux.CgroupsPath == "" {
		return nil
	}
	path, err := c.Spec.Linux.CgroupsPath, error(nil)
	if c.Handler.SystemdCgroup {
		if path, err = cgroup.ScopePath(path); err != nil {
			return nil // the runtime refuses it, too
		}
	}
	if !strings.Contains(filepath.Base(path), c.Container) {
		return nil
	}
	at, err := cgroup.Locate(path)
	if err != nil {
		return nil
	}
	var all []string
	for _, dir := range at.V1 {
		all = append(all, dir)
	}
	if at.Unified != "" {
		all = append(all, at.Unified)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// groups are all cgroups in which processes of a container may be.
func (c *Config) groups(pod, ctr string) []*cgroup.Group {
	all := []*cgroup.Group{c.containerGroup(ctr)}
	if b, err := c.bundleOf(pod, ctr); err == nil {
		for _, dir := range b.Cgroups {
			all = append(all, cgroup.At(dir))
		}
	}
	return all
}

// bundleOf is what a container's monitor was given, and has noted.
func (c *Config) bundleOf(pod, ctr string) (b wire.Bundle, err error) {
	data, err := os.ReadFile(filepath.Join(c.bundle(pod, ctr), bundleFile))
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	return b, err
}

// processOf is a container's first process, as its monitor has noted it.
func (c *Config) processOf(pod, ctr string) (p Process, err error) {
	data, err := os.ReadFile(filepath.Join(c.bundle(pod, ctr), "pid"))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	return p, err
}

// removeGroups ends what lives of a container and removes its cgroups by their names. The runtime removes those that it
// remembers, and one that was killed in the middle of a create has made more of them than it wrote down.
func removeGroups(ctx context.Context, cfg *Config, pod, ctr string) error {
	var errs []error
	for _, g := range cfg.groups(pod, ctr) {
		err := g.Remove()
		if errors.Is(err, unix.EBUSY) {
			err = end(ctx, g)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// killContainer kills what lives of a container where no monitor does it.
func (c *Config) killContainer(pod, ctr string) error {
	var errs []error
	for _, g := range c.groups(pod, ctr) {
		errs = append(errs, g.Kill())
	}
	return errors.Join(errs...)
}

// clearContainer kills what lives of a container and waits until it is gone.
func (c *Config) clearContainer(ctx context.Context, pod, ctr string) error {
	for ; ; time.Sleep(2 * time.Millisecond) {
		if err := c.killContainer(pod, ctr); err != nil {
			return err
		}
		left, err := processesLeft(c, pod, ctr)
		if err != nil || left == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("container %s was killed and has not ended: %w", ctr, context.Cause(ctx))
		}
	}
}

// processesLeft is how many processes are in the cgroups of a container.
func processesLeft(c *Config, pod, ctr string) (n int, err error) {
	for _, g := range c.groups(pod, ctr) {
		pids, err := g.Pids()
		if err != nil {
			return 0, err
		}
		n += len(pids)
	}
	return n, nil
}

// dieTime is how long what was killed may take to end before a kill that was refused is an error.
const dieTime = time.Second

// goneSoon reports whether nothing lives of a container within dieTime.
func goneSoon(ctx context.Context, c *Config, pod, ctr string) bool {
	for end := time.Now().Add(dieTime); ; time.Sleep(2 * time.Millisecond) {
		p, _ := c.processOf(pod, ctr)
		if n, err := processesLeft(c, pod, ctr); err == nil && n == 0 && !process.Alive(p.PID, p.StartTime) {
			return true
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
}
