package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/apparmor"
	"berth/internal/cdi"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/host"
	"berth/internal/image"
	"berth/internal/image/verifier"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/pod"
	"berth/internal/record"
	"berth/internal/runtime"
	"berth/internal/spec"
	"berth/internal/spec/device"
	"berth/internal/stream"
	"berth/internal/supervisor"
	"berth/internal/telemetry"
)

// node is the daemon's parts and how they hang together.
type node struct {
	cfg        *config.Config
	log        *slog.Logger
	level      *slog.LevelVar
	timeline   *telemetry.Timeline
	supervisor *supervisor.Supervisor
	metrics    *telemetry.Metrics // nil unless they are served
	flusher    *record.Flusher
	groups
	facts    host.Facts
	profiles *apparmor.Profiles
	monitor  string
	runtimes []host.Runtime // as found, with the default's name in fallback
	fallback string

	confinement string // the AppArmor profile for RuntimeDefault; empty where there is none
	driver      *runtime.Runtime
	network     *network.Network
	images      *image.Store
	pods        *pod.Pods
	streams     *stream.Server
	face        *cri.Server

	background sync.WaitGroup
	stop       context.CancelFunc
}

func newNode(cfg *config.Config) *node {
	n := &node{cfg: cfg, level: &slog.LevelVar{}, timeline: &telemetry.Timeline{}, face: &cri.Server{}}
	n.timeline.Begin(time.Now())
	if l, err := telemetry.ParseLevel(cfg.LogLevel); err == nil { // Load has checked it
		n.level.Set(l)
	}
	n.log = telemetry.Logger(os.Stderr, cfg.LogFormat, n.level)
	if cfg.Metrics.Address != "" {
		n.metrics = telemetry.NewMetrics(version)
	}
	n.supervisor = supervisor.FromEnvironment()
	n.supervisor.Log = n.log
	n.flusher = &record.Flusher{Failed: func(path string, err error) {
		n.log.Warn("a record could not be made durable; it is tried again", "path", path, "error", err)
	}}
	return n
}

func (n *node) interceptors(ready func() bool) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	return telemetry.Interceptors(n.log, ready, n.metrics)
}

// open makes every part, from the ground up. Nothing here waits for a program, unless no default runtime is named.
func (n *node) open(ctx context.Context) error {
	for _, part := range []struct {
		name string
		open func(context.Context) error
	}{
		{"host", n.openHost}, {"runtimes", n.openRuntimes}, {"confinement", n.openConfinement}, {"network", n.openNetwork}, {"images", n.openImages}, {"pods", n.openPods},
		{"streams", n.openStreams},
	} {
		if err := part.open(ctx); err != nil {
			return fmt.Errorf("start %s: %w", part.name, err)
		}
		n.timeline.Mark(part.name)
	}
	n.face.Pods, n.face.Images, n.face.Network, n.face.Handlers, n.face.Info = n.pods, n.images, n.network, n.handlers(), n.info
	n.face.Streams, n.face.SystemdCgroup = n.streams, n.units != nil
	n.face.Release, n.face.ImagesRoot, n.face.ContainersRoot = version, n.cfg.ImagesRoot(), containersRoot(n.cfg)
	background, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.background.Go(func() { n.flusher.Run(background) })
	n.background.Go(func() {
		if err := n.streams.Serve(); err != nil {
			n.log.Error("exec, attach and port-forward are not served any more: restart the daemon", "error", err)
		}
	})
	return serveMetrics(background, n)
}

func (n *node) openHost(context.Context) (err error) {
	if n.facts, err = host.Probe(); err != nil {
		return err
	}
	if err := n.facts.ChooseDriver(n.cfg.CgroupDriver); err != nil {
		return err
	}
	if n.monitor, err = n.cfg.MonitorPath(); err != nil {
		return err
	}
	n.groups, err = openGroups(n.cfg, n.facts, n.monitor)
	return err
}

func (n *node) openRuntimes(ctx context.Context) (err error) {
	for _, r := range n.groups.earlier() {
		if err := r.Sweep(); err != nil {
			n.log.Warn("helpers of an earlier daemon could not all be ended", "error", err)
		}
	}
	if err := n.chooseRuntime(ctx); err != nil {
		return err
	}
	cfg := runtime.Config{
		Monitor: n.monitor, Root: n.cfg.Root, State: n.cfg.State, Tracking: n.tracking, Group: n.cfg.Instance(),
		Helper: n.helpers.Run, Log: n.log,
		OnExit: func(p, c string, e runtime.Exit) { n.pods.Exited(p, c, e) },
	}
	if n.units != nil {
		cfg.Group, cfg.Units = n.units.Home(), n.units
	}
	n.driver, err = runtime.New(cfg)
	return err
}

// openConfinement loads the default AppArmor profile. Where that fails, containers that ask for no profile run without one.
func (n *node) openConfinement(ctx context.Context) error {
	n.profiles = &apparmor.Profiles{State: n.cfg.State, Run: n.helpers.Run}
	if !n.facts.AppArmor {
		return nil
	}
	if err := n.profiles.Load(ctx); err != nil {
		n.log.Warn("containers that ask for no AppArmor profile run without one, and those that ask for RuntimeDefault are refused", "error", err)
		return nil
	}
	n.confinement = apparmor.DefaultName
	return nil
}

// chooseRuntime finds the runtimes and the default: the one that the configuration names, or the first that works.
func (n *node) chooseRuntime(ctx context.Context) (err error) {
	n.runtimes = host.FindRuntimes(n.cfg.Runtimes.Paths())
	if n.fallback = n.cfg.Runtimes.Default; n.fallback != "" {
		_, err = host.Named(n.runtimes, n.fallback)
		return err
	}
	try := func(ctx context.Context, path string) host.Runtime {
		return host.TryRuntime(ctx, path, n.cfg.State, n.facts.CgroupDriver, n.helpers.Run)
	}
	n.fallback, n.runtimes, err = host.ChooseRuntime(ctx, filepath.Join(n.cfg.Root, "runtimes"), n.facts, n.runtimes, try)
	if n.fallback != "" && err != nil {
		n.log.Warn("the next start tries the runtimes again", "error", err)
		return nil
	}
	return err
}

func (n *node) openNetwork(context.Context) (err error) {
	n.network, err = network.Open(network.Config{
		ConfigDir: n.cfg.CNI.ConfigDir, PluginDirs: n.cfg.CNI.PluginDirs, CacheDir: filepath.Join(n.cfg.Root, "cni"),
		Run: n.helpers.Run, Logger: n.log, Dirty: n.flusher.Dirty, Template: n.cfg.CNI.PodCIDRTemplate,
		AddTimeout: n.cfg.CNI.AddTimeout.Duration, DelTimeout: n.cfg.CNI.DelTimeout.Duration,
	})
	return err
}

func (n *node) openImages(context.Context) (err error) {
	if err := tryImages(n.cfg.ImagesRoot(), n.log); err != nil {
		return err
	}
	n.images, err = image.Open(n.imageConfig())
	return err
}

func (n *node) imageConfig() image.Config {
	c := n.cfg.Images
	return image.Config{
		Root: n.cfg.ImagesRoot(), RegistryConfigDir: n.cfg.Registry.ConfigDir, Pinned: c.Pinned,
		MaxLayers: c.MaxLayers, MaxManifestBytes: c.MaxManifestBytes, MaxConfigBytes: c.MaxConfigBytes, MaxLayerBytes: c.MaxLayerBytes,
		MaxLayerEntries: c.MaxLayerEntries, MaxPullLayers: c.MaxPullLayers, MaxParallelLayers: c.MaxConcurrentDownloads,
		MaxLayerConnections: c.MaxLayerConnections, StallTimeout: c.StallTimeout.Duration, MaxBufferBytes: c.MaxBufferBytes,
		Verifier: n.verifier(), Dirty: n.flusher.Dirty, Logger: n.log, BootID: n.facts.BootID, InUse: func() map[string]struct{} { return n.pods.Layers() },
	}
}

// verifier is who is asked about images; nil when nobody is configured.
func (n *node) verifier() image.Verifier {
	v := n.cfg.Verifier
	if v.Dir == "" {
		return nil
	}
	return &verifier.Dir{Path: v.Dir, Max: v.Max, Timeout: v.Timeout.Duration, Run: n.helpers.Run, Log: n.log}
}

func (n *node) openPods(context.Context) (err error) {
	n.pods, err = pod.Open(pod.Config{
		Layout: pod.Layout{Root: n.cfg.Root, State: n.cfg.State, Instance: n.cfg.Instance(), NetNS: "/run/netns"},
		Boot:   n.facts.BootID, Host: n.specHost(), Init: n.monitor, PidsLimit: int64(n.cfg.Limits.Pids),
		AppArmor: n.profiles.Ensure, Devices: (&cdi.Devices{Dirs: n.cfg.CDI.SpecDirs, Log: n.log}).Inject,
		Runtime: n.driver, Network: n.network, Images: shelf{n.images}, Handlers: n.handler, HandlerSpec: n.handlerSpec,
		Cgroups: n.groups.driver(), Dirty: n.flusher.Dirty, Log: n.log,
		Abandon: n.cfg.Timeouts.CreateAbandon.Duration, CreateTimeout: n.cfg.Timeouts.RuntimeCreate.Duration, Retry: op.Backoff{}, StepSeen: n.metrics.Step,
	})
	return err
}

// shelf gives a pod its images as it wants them.
type shelf struct{ *image.Store }

func (s shelf) Use(ref string) (pod.Image, func(), error) {
	img, release, err := s.Store.Use(ref)
	if err != nil {
		return pod.Image{}, nil, err
	}
	return pod.Image{ID: img.ID, Config: img.Config.Config, Layers: img.Layers, Dirs: s.LayerDirs(img)}, release, nil
}

// specHost is what the facts mean for a container's spec.
func (n *node) specHost() spec.Host {
	f := n.facts
	devices, err := device.List("/dev")
	if err != nil {
		n.log.Warn("privileged containers get no devices", "error", err)
	}
	return spec.Host{
		Hostname: f.Hostname, KernelVersion: f.Kernel, Arch: f.Arch, CgroupV2: f.Cgroup == host.CgroupV2, CgroupMountOptions: f.CgroupMountOptions,
		SwapAccounting: f.SwapAccounting, HugepageSizes: f.HugepageSizes, BoundingCaps: f.BoundingCaps, HasResource: f.HasResource,
		OOMScoreAdj: f.OOMScoreAdj, Rlimits: f.Rlimits, Devices: devices, SELinux: f.SELinux,
		Seccomp: f.Seccomp, DefaultSeccomp: host.DefaultSeccomp,
		AppArmor: f.AppArmor, AppArmorDefault: n.confinement,
	}
}

// handler finds the runtime that a pod asks for by name; "" is the default.
func (n *node) handler(name string) (runtime.Handler, error) {
	if name == "" {
		name = n.fallback
	}
	i := slices.IndexFunc(n.runtimes, func(r host.Runtime) bool { return r.Name == name })
	if i < 0 {
		return runtime.Handler{}, pod.Fail(errdefs.ErrNotFound, "runtime handler %q is not configured on this node: add [runtimes.%s] to the configuration",
			name, name)
	}
	return runtime.Handler{Name: name, Path: n.runtimes[i].Path, Root: filepath.Join(n.cfg.State, "runtime", name), SystemdCgroup: n.units != nil}, nil
}

func (n *node) handlerSpec(name string) spec.Handler {
	if name == "" {
		name = n.fallback
	}
	h := n.cfg.Runtimes.Handlers[name]
	return spec.Handler{
		PrivilegedWithoutHostDevices: h.PrivilegedWithoutHostDevices,
		PodAnnotations:               h.PodAnnotations, ContainerAnnotations: h.ContainerAnnotations,
	}
}

// handlers is what Status tells of the runtime handlers, the default's first.
func (n *node) handlers() []*runtimeapi.RuntimeHandler {
	list := []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{}}}
	for _, r := range n.runtimes {
		list = append(list, &runtimeapi.RuntimeHandler{Name: r.Name, Features: &runtimeapi.RuntimeHandlerFeatures{}})
	}
	return list
}

// recover serves what the records say at once, and finds out behind that what still runs.
func (n *node) recover(ready func()) {
	adopted := n.pods.Recover()
	n.timeline.Mark("serve")
	ready()
	n.supervisor.Ready("Serving CRI at " + n.cfg.Socket)
	n.log.Info("the daemon is ready", "socket", n.cfg.Socket, "instance", n.cfg.Instance(), "runtime", n.fallback, "version", version, "start", n.timeline)
	n.background.Go(func() {
		<-adopted
		n.timeline.Mark("adopt")
		if err := n.images.Sweep(context.Background()); err != nil {
			n.log.Warn("sweep of unused layers is not complete; the next start tries again", "error", err)
		}
	})
}

// close ends the daemon's own work and makes durable what is not yet. The pods run on.
func (n *node) close() error {
	n.pods.Close()
	errs := []error{n.streams.Close(), n.network.Close(), n.images.Close()}
	n.stop()
	n.background.Wait()
	n.groups.tidy()
	return errors.Join(errs...)
}

// info is what a verbose Status shows.
func (n *node) info() map[string]any {
	return map[string]any{
		"config": n.cfg.TOML(), "host": n.facts, "instance": n.cfg.Instance(), "runtimes": n.runtimes, "defaultRuntime": n.fallback,
		"startup": n.timeline.Steps(), "problems": n.pods.Problems(),
		"events": n.pods.EventCounts(),
	}
}
