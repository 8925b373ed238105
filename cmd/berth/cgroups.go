package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/bundle"
	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/helper"
	"berth/internal/host"
	"berth/internal/pod"
	"berth/internal/systemd"
)

// groups is where in the cgroup tree the daemon's own things are.
type groups struct {
	tracking string // the mount point of the cgroup2 hierarchy
	instance string
	unit     string // this process's own in systemd, which is delegated to it; "" when it has none
	helpers  *helper.Runner
	naming   cgroup.Naming         // of containers' cgroups
	units    *systemd.Units        // nil unless systemd is the cgroup driver
	scopes   *systemd.Units        // nil unless systemd runs
	monitors *systemd.MonitorScope // nil unless systemd is the cgroup driver
}

// openGroups decides. Helpers run below the daemon's unit where systemd has delegated that to it.
func openGroups(cfg *config.Config, facts host.Facts, monitor string) (g groups, err error) {
	g.instance, g.naming = cfg.Instance(), cgroup.Naming(cfg.CgroupNames)
	if g.tracking, err = cgroup.Tracking(cfg.State); err != nil {
		return g, err
	}
	base := g.tracking
	if facts.Systemd && facts.Cgroup == host.CgroupV2 {
		own, err := systemd.Delegated(g.tracking)
		if err != nil {
			return g, err
		}
		if own != "" {
			base, g.unit = own, own
		}
	}
	g.helpers = &helper.Runner{Root: g.ops(base)}
	m := &systemd.Manager{}
	if facts.Systemd {
		g.scopes = &systemd.Units{Manager: m, Instance: g.instance, Naming: g.naming, Mount: g.tracking}
	}
	if facts.CgroupDriver == host.SystemdDriver {
		g.units = g.scopes
		g.monitors = &systemd.MonitorScope{Manager: m, Instance: g.instance, Mount: g.tracking, Holder: monitor}
	}
	return g, nil
}

// leaveEnded has the daemon leave a group in which it could start nothing. Where that fails it goes on: pods that run
// need no new process.
func leaveEnded(g *groups, log *slog.Logger) {
	left, err := cgroup.LeaveEnded(g.tracking, filepath.Join(g.instance, "probe"))
	switch {
	case err != nil:
		log.Error("the daemon can perhaps start no process", "error", err)
	case left != "":
		log.Warn("the daemon has moved to a new cgroup below its own: its own was once ended by cgroup.kill, and Linux "+
			"kills what is born from there into other cgroups", "cgroup", left)
	}
}

// favorDynmods has the kernel move processes between cgroups without waiting. A daemon goes on without: its starts and
// execs take longer, as everybody's do.
func favorDynmods(tracking string, log *slog.Logger) {
	if err := cgroup.FavorDynmods(tracking); err != nil {
		log.Warn("each start and each exec waits for the kernel, although cgroup_favor_dynmods says that it should not",
			"error", err)
	}
}

func (g *groups) ops(base string) string { return filepath.Join(base, g.instance, "ops") }

// earlier are the places, beside that of this one, where an earlier daemon may have had its helpers: that of one which
// systemd did not start.
func (g *groups) earlier() []string {
	if plain := g.ops(g.tracking); plain != g.helpers.Root {
		return []string{plain}
	}
	return nil
}

// cgroupDriver makes the cgroups of pods, changes and removes them.
type cgroupDriver interface {
	pod.Cgroups
	bundle.CgroupDriver
}

// driver is what makes them on this node.
func (g *groups) driver() cgroupDriver {
	plain := limits.Direct{Direct: cgroup.Direct{Instance: g.instance, Naming: g.naming}}
	d := driverInForce{cgroupDriver: plain, plain: plain, scopes: g.scopes}
	if g.units != nil {
		d.cgroupDriver = g.units
	}
	return d
}

// driverInForce changes the limits of a container by the driver that its cgroup was made by, which its name shows. That
// may be another one than the driver of new pods.
type driverInForce struct {
	cgroupDriver
	plain  limits.Direct
	scopes *systemd.Units // nil unless systemd runs
}

// SetLimits changes the limits of a container, as limits.Set does.
func (d driverInForce) SetLimits(ctx context.Context, ctr string, was limits.Was, want *specs.LinuxResources) (
	putBack func() error, err error) {
	switch {
	case !strings.Contains(ctr, ":"):
		return d.plain.SetLimits(ctx, ctr, was, want)
	case d.scopes == nil:
		return nil, fail.New(errdefs.ErrFailedPrecondition, "the cgroup %s is a scope of systemd, which does not run here: "+
			"make the pod anew to change its limits", ctr)
	}
	return d.scopes.SetLimits(ctx, ctr, was, want)
}

// tidyTimeout bounds what systemd is waited for at the daemon's end.
const tidyTimeout = 2 * time.Second

// tidy removes the instance's own cgroups where they are empty. It does nothing before openGroups.
func (g *groups) tidy() {
	if g.helpers == nil {
		return
	}
	for _, ops := range append(g.earlier(), g.helpers.Root) {
		_ = os.Remove(ops)
		_ = os.Remove(filepath.Dir(ops))
	}
	for _, name := range []string{"monitors", "containers", ""} {
		_ = os.Remove(filepath.Join(g.tracking, g.instance, name))
	}
	if left, err := cgroup.Children("/" + g.instance); err == nil && len(left) == 0 {
		_ = cgroup.RemoveTree("/" + g.instance)
	}
	if g.units != nil {
		ctx, cancel := context.WithTimeout(context.Background(), tidyTimeout)
		defer cancel()
		_ = g.units.Tidy(ctx) // an empty slice does no harm
		g.units.Manager.Close()
	}
}
