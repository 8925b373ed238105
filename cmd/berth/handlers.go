package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/host"
	"berth/internal/limit"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/spec"
)

// handlers are the runtime handlers as configured at one time. One that findHandlers returned is not changed any more.
type handlers struct {
	found    []host.Runtime // the default's name is fallback
	fallback string
	probed   bool // the configuration names no default
	named    map[string]config.Handler
	bases    map[string]*spec.Base
	broken   map[string]error // why the base spec of a handler cannot be used
	at       time.Time        // when they were looked for
	pids     int
	timeout  time.Duration
	state    string
	systemd  bool
}

// findHandlers looks for the programs, reads the base specs, and finds the default: the one that the configuration
// names, or the first that works. A handler whose base spec cannot be used is among them, and makes nothing new.
func findHandlers(ctx context.Context, t *runtimeTrials, cfg *config.Config) (*handlers, error) {
	h := &handlers{
		found: host.FindRuntimes(programs(cfg.Runtimes)), fallback: cfg.Runtimes.Default,
		probed: cfg.Runtimes.Default == "", named: cfg.Runtimes.Handlers, bases: map[string]*spec.Base{},
		broken: map[string]error{}, at: time.Now(),
		pids: cfg.Limits.Pids, timeout: cfg.Timeouts.RuntimeCreate.Duration, state: cfg.State,
		systemd: t.facts.CgroupDriver == host.SystemdDriver,
	}
	if err := checkWritable(cfg, t.facts.Cgroup, t.log); err != nil {
		return nil, err
	}
	for name, c := range h.named {
		if c.BaseSpec == "" {
			continue
		}
		base, err := readBase(c.BaseSpec)
		if err != nil {
			h.broken[name] = cfg.Refuse("runtimes."+name+".base_spec", fmt.Sprintf("%s: %v", c.BaseSpec, err))
			continue
		}
		h.bases[name] = base
		if withheld := base.Withheld(); len(withheld) > 0 {
			t.log.Info("the base spec of a runtime handler keeps usual capabilities from containers that name none",
				"key", "runtimes."+name+".base_spec", "file", c.BaseSpec, "capabilities", strings.Join(withheld, " "))
		}
	}
	return h, h.chooseDefault(ctx, t)
}

// checkWritable refuses a handler with cgroup_writable on a host without cgroup v2, where no part of the hierarchies
// can be given to a container safely. A missing nsdelegate is only warned of here: it can come and go while the daemon
// runs, and the creation of each container looks for it.
func checkWritable(cfg *config.Config, mode host.CgroupMode, log *slog.Logger) error {
	for _, name := range slices.Sorted(maps.Keys(cfg.Runtimes.Handlers)) {
		if !cfg.Runtimes.Handlers[name].CgroupWritable {
			continue
		}
		key := "runtimes." + name + ".cgroup_writable"
		if mode != host.CgroupV2 {
			return cfg.Refuse(key, fmt.Sprintf("needs cgroup v2, and this host is on %s: remove the key, "+
				"or boot with systemd.unified_cgroup_hierarchy=1", mode))
		}
		if ok, err := host.Delegated(); err != nil || !ok {
			log.Warn("a runtime handler with cgroup_writable makes no unprivileged containers until /sys/fs/cgroup is "+
				"mounted with nsdelegate: run mount -o remount,nsdelegate /sys/fs/cgroup", "key", key, "error", err)
		}
	}
	return nil
}

// programs are the configured handlers as they are looked for and tried.
func programs(r config.Runtimes) map[string]host.Runtime {
	all := make(map[string]host.Runtime, len(r.Handlers))
	for name, h := range r.Handlers {
		all[name] = host.Runtime{Path: h.Path, Args: h.Args}
	}
	return all
}

func readBase(path string) (*spec.Base, error) {
	data, err := rootfs.ReadFile("/", path, limit.BaseSpec) // a FIFO there must not hang anything
	if err != nil {
		return nil, err
	}
	return spec.ParseBase(data)
}

func (h *handlers) chooseDefault(ctx context.Context, t *runtimeTrials) (err error) {
	if h.fallback != "" {
		_, err = host.Named(h.found, h.fallback)
		return err
	}
	t.alone(func() { h.fallback, h.found, err = t.choose(ctx, h.found) })
	if h.fallback != "" && err != nil {
		t.log.Warn("the next start tries the runtimes again", "error", err)
		return nil
	}
	return err
}

// whole is an error unless all base specs can be used.
func (h *handlers) whole() error {
	for _, name := range slices.Sorted(maps.Keys(h.broken)) {
		return h.broken[name]
	}
	return nil
}

// problems are the handlers that make nothing new.
func (h *handlers) problems() (all []admin.Problem) {
	for _, name := range slices.Sorted(maps.Keys(h.broken)) {
		all = append(all, admin.Problem{Message: h.refused(name).Error(), Since: h.at})
	}
	return all
}

// refused says why a handler makes nothing new; nil if it does. Without its base spec a container would get what that
// keeps from it.
func (h *handlers) refused(name string) error {
	err := h.broken[name]
	if err == nil {
		return nil
	}
	return fail.New(errdefs.ErrFailedPrecondition, "runtime handler %s makes no new pods and containers until its base "+
		"spec can be used: %v; mend it, and run berth reload", name, err)
}

// find finds the runtime that a pod asks for by name; "" is the default.
func (h *handlers) find(name string) (runtime.Handler, error) {
	if name == "" {
		name = h.fallback
	}
	i := slices.IndexFunc(h.found, func(r host.Runtime) bool { return r.Name == name })
	if i < 0 {
		return runtime.Handler{}, fail.New(errdefs.ErrNotFound,
			"runtime handler %q is not configured on this node: add [runtimes.%s] to the configuration",
			name, name)
	}
	c := h.named[name]
	out := runtime.Handler{
		Name: name, Path: h.found[i].Path, Root: filepath.Join(h.state, "runtime", name), SystemdCgroup: h.systemd,
		ExtraArgs: c.Args, Infra: c.Driver == config.DriverInfra, Init: c.Init, Timeout: h.timeout,
	}
	if c.CreateTimeout.Duration > 0 {
		out.Timeout = c.CreateTimeout.Duration
	}
	return out, nil
}

// findSpec is both: the runtime, and what the same configuration says of its containers.
func (h *handlers) findSpec(name string) (runtime.Handler, spec.Handler, error) {
	r, err := h.find(name)
	if err == nil {
		err = h.refused(r.Name)
	}
	if err != nil {
		return r, spec.Handler{}, err
	}
	return r, h.spec(name), nil
}

// spec is what the configuration says of a handler's containers.
func (h *handlers) spec(name string) spec.Handler {
	if name == "" {
		name = h.fallback
	}
	c := h.named[name]
	out := spec.Handler{
		PrivilegedWithoutHostDevices:       c.PrivilegedWithoutHostDevices,
		CgroupWritable:                     c.CgroupWritable,
		DeviceOwnershipFromSecurityContext: c.DeviceOwnershipFromSecurityContext,
		PodAnnotations:                     c.PodAnnotations, ContainerAnnotations: c.ContainerAnnotations,
		Infra: c.Driver == config.DriverInfra, Base: h.bases[name], PidsLimit: int64(h.pids),
	}
	if c.PidsLimit != 0 {
		out.PidsLimit = int64(max(c.PidsLimit, 0))
	}
	out.NoSocketcall = c.Socketcall == config.SocketcallDeny
	out.ShmSize, out.MaxShmSize, out.Rlimits = c.ShmSize, c.MaxShmSize, rlimits(c.Ulimits)
	out.Storage = spec.Storage{
		Size: c.StorageSize, Inodes: c.StorageInodes, MaxSize: c.MaxStorageSize, MaxInodes: c.MaxStorageInodes,
		Refuse: c.StorageWithoutQuota == config.StorageRefuse,
	}
	out.Log = spec.Log{Rate: c.LogRate, Burst: c.LogBurst, MaxRate: c.MaxLogRate, MaxBurst: c.MaxLogBurst}
	return out
}

// rlimits are a handler's limits as an OCI spec has them. The configuration was checked when it was read.
func rlimits(ulimits []string) (out []specs.POSIXRlimit) {
	for _, text := range ulimits {
		if u, err := config.ParseUlimit(text); err == nil {
			out = append(out, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(u.Name), Soft: u.Soft, Hard: u.Hard})
		}
	}
	return out
}
