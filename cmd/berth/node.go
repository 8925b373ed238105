package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	validator "github.com/containerd/nri/plugins/default-validator"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/bundle"
	"berth/internal/callers"
	"berth/internal/cdi"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/helper"
	"berth/internal/host"
	"berth/internal/image"
	"berth/internal/image/inflate"
	"berth/internal/image/verifier"
	"berth/internal/memory"
	"berth/internal/network"
	"berth/internal/nri"
	"berth/internal/op"
	"berth/internal/pod"
	"berth/internal/record"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/stream"
	"berth/internal/supervisor"
	"berth/internal/telemetry"
)

// node is the daemon's parts and how they hang together.
type node struct {
	cfg        *config.Config // what the daemon was started with
	settings   *settings      // what holds now
	opened     atomic.Bool    // all parts are there
	log        *slog.Logger
	logWriter  *telemetry.Writer
	level      *slog.LevelVar
	timeline   *telemetry.Timeline
	supervisor *supervisor.Supervisor
	metrics    *telemetry.Metrics // nil unless they are served
	flusher    *record.Flusher
	// imageFlusher is for records of images, which may be on a disk of their own: one that hangs holds up no other's.
	imageFlusher *record.Flusher
	groups       groups
	facts        host.Facts
	monitor      string

	confinement confinement
	driver      *runtime.Runtime
	plugins     *nri.Plugins // nil where the configuration has them off
	network     *network.Network
	images      *image.Store
	gunzip      *inflate.Program // nil when the daemon inflates by itself
	crew        *helper.Crew     // of unpackers
	preload     preloads
	metricsPort metricsPort
	pods        *pod.Pods
	streamNode  *streamNode
	streams     *stream.Server
	criServer   *cri.Server
	callers     *callers.Callers
	memory      *memory.Bound

	trials     *runtimeTrials
	features   features
	background *background
}

func newNode(cfg *config.Config) *node {
	n := &node{cfg: cfg, level: &slog.LevelVar{}, timeline: &telemetry.Timeline{}, criServer: &cri.Server{}}
	n.settings, n.background = &settings{}, newBackground()
	n.settings.config.Store(cfg)
	n.timeline.Begin(time.Now())
	if l, err := telemetry.ParseLevel(cfg.LogLevel); err == nil { // Load has checked it
		n.level.Set(l)
	}
	n.log, n.logWriter = newOwnLog(cfg.LogFormat, n.level)
	if cfg.Metrics.Address != "" {
		n.metrics = telemetry.NewMetrics(version)
	}
	n.trials = &runtimeTrials{root: cfg.Root, state: cfg.State, images: cfg.ImagesRoot(), log: n.log}
	n.features.prepare(n.settings, n.trials, n.background)
	n.callers = newCallers(cfg.Limits, n.log)
	n.supervisor = supervisor.FromEnvironment()
	n.supervisor.Log = n.log
	failed := func(path string, err error) {
		n.log.Warn("a record could not be made durable; it is tried again", "path", path, "error", err)
	}
	n.flusher, n.imageFlusher = &record.Flusher{Failed: failed}, &record.Flusher{Failed: failed}
	return n
}

func (n *node) interceptors(ready func() bool) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	return telemetry.Interceptors(n.log, ready, n.metrics, "/"+admin.DebugService+"/")
}

// open makes every part, from the ground up. Nothing here waits for a program, unless no default runtime is named.
// Where it fails the cgroups that it made for the daemon are gone.
func (n *node) open(ctx context.Context) error {
	for _, part := range []struct {
		name string
		open func(context.Context) error
	}{
		{"host", n.openHost}, {"runtimes", n.openRuntimes}, {"confinement", n.openConfinement},
		{"network", n.openNetwork}, {"images", n.openImages}, {"pods", n.openPods}, {"streams", n.openStreams},
	} {
		if err := part.open(ctx); err != nil {
			n.groups.tidy()
			return fmt.Errorf("start %s: %w", part.name, err)
		}
		n.timeline.Mark(part.name)
	}
	n.openCRI()
	n.background.run(n.flusher.Run)
	n.background.run(n.imageFlusher.Run)
	n.background.run(func(context.Context) {
		if err := n.streams.Serve(); err != nil {
			n.log.Error("exec, attach and port-forward are not served any more: restart the daemon", "error", err)
		}
	})
	serveMetrics(n)
	return nil
}

// openCRI gives the server of CRI, which refuses all until the daemon is ready, what it asks.
func (n *node) openCRI() {
	s := n.criServer
	s.Pods, s.Catalog, s.Images, s.Network, s.Streams = n.pods, &n.pods.Catalog, n.images, n.network.CNI, n.streams
	s.Handlers, s.Info, s.SystemdCgroup = n.features.handlers, n.info, n.groups.units != nil
	s.HasHandler = func(name string) bool {
		_, err := n.settings.handlers.Load().find(name)
		return err == nil
	}
	s.ListByHand = func() bool { return n.settings.config.Load().Pods.ListByHand }
	s.Release, s.ImagesRoot, s.ContainersRoot = version, n.cfg.ImagesRoot(), containersRoot(n.cfg)
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
	if n.groups, err = openGroups(n.cfg, n.facts, n.monitor); err != nil {
		return err
	}
	leaveEnded(&n.groups, n.log)
	if n.cfg.CgroupFavorDynmods {
		favorDynmods(n.groups.tracking, n.log)
	}
	n.trials.facts, n.trials.monitor, n.trials.run = n.facts, n.monitor, n.groups.helpers.Run
	n.memory = openMemory(n.cfg, &n.groups, n.facts.BootID, n.log)
	return nil
}

func (n *node) openRuntimes(ctx context.Context) (err error) {
	if err := n.groups.helpers.Sweep(n.groups.earlier()...); err != nil {
		n.log.Warn("helpers of an earlier daemon could not all be ended; their operations wait for them", "error", err)
	}
	if err := host.SweepTrials(n.cfg.State, n.facts.CgroupDriver); err != nil {
		n.log.Warn("what an earlier daemon left of a trial of a runtime could not all be removed", "error", err)
	}
	found, err := findHandlers(ctx, n.trials, n.cfg)
	if err != nil {
		return err
	}
	for _, p := range found.problems() { // every start is a recovery, and the pods of other handlers need it
		n.log.Error(p.Message)
	}
	n.settings.handlers.Store(found)
	cfg := runtime.Config{
		Monitor: n.monitor, Root: n.cfg.Root, State: n.cfg.State, Tracking: n.groups.tracking, Group: n.cfg.Instance(),
		Helper: n.groups.helpers.Run, Log: n.log,
		OnExit:    func(p, c string, e runtime.Exit) { n.pods.Exited(p, c, e) },
		OnDropped: func(p, c string, d runtime.Dropped) { pod.LogDropped(n.pods, sandbox.ID(p), sandbox.ID(c), d) },
	}
	if n.groups.units != nil {
		cfg.Group, cfg.Scope, cfg.Units = n.groups.monitors.Group(), n.groups.monitors, n.groups.units
	}
	n.driver, err = runtime.New(cfg)
	return err
}

func (n *node) openNetwork(context.Context) (err error) {
	n.network, err = network.Open(n.networkConfig(n.cfg))
	return err
}

func (n *node) networkConfig(cfg *config.Config) network.Config {
	c := cfg.CNI
	return network.Config{
		ConfigDir: c.ConfigDir, PluginDirs: c.PluginDirs, CacheDir: filepath.Join(cfg.Root, "cni"),
		Run: n.groups.helpers.Run, Logger: n.log, Dirty: n.flusher.Dirty, DirtyRecord: n.flusher.DirtyRecord,
		Template:   c.PodCIDRTemplate,
		AddTimeout: c.AddTimeout.Duration, DelTimeout: c.DelTimeout.Duration,
	}
}

func (n *node) openImages(context.Context) (err error) {
	if err := tryImages(n.cfg.ImagesRoot(), n.log); err != nil {
		return err
	}
	n.gunzip = openGunzip(n.cfg.Images.Gunzip, n.groups.helpers.RunStarted, n.log)
	if n.crew, err = openCrew(n.cfg, &n.groups, n.log); err != nil {
		return err
	}
	if n.images, err = image.Open(n.imageConfig(n.cfg)); err == nil {
		n.preload.store, n.preload.dirty, n.preload.log = n.images, n.imageFlusher.Dirty, n.log
		n.preload.open(n.cfg)
	}
	return err
}

// reconfigure has the parts take over a configuration. What may fail is first.
func (n *node) reconfigure(cfg *config.Config) error {
	if err := n.images.Reconfigure(n.imageConfig(cfg)); err != nil {
		return err
	}
	n.network.CNI.Reconfigure(n.networkConfig(cfg))
	n.preload.open(cfg)
	return nil
}

// openGunzip is the program that inflates layers; nil where the daemon does so by itself.
func openGunzip(setting string, run inflate.Run, log *slog.Logger) *inflate.Program {
	switch setting {
	case config.GunzipNever:
		return nil
	case config.GunzipAuto:
		p, err := inflate.New("", run, log)
		if err != nil {
			log.Info("the daemon inflates gzip layers by itself", "reason", err)
		}
		return p
	}
	p, err := inflate.New(setting, run, log)
	if err != nil {
		log.Warn("the daemon inflates gzip layers by itself: mend images.gunzip, or what it names, and restart it",
			"error", err)
	}
	return p
}

func (n *node) imageConfig(cfg *config.Config) image.Config {
	c, cores := &cfg.Images, cores()
	return image.Config{
		Root: cfg.ImagesRoot(), RegistryConfigDir: cfg.Registry.ConfigDir, Pinned: c.Pinned,
		MaxLayers: c.MaxLayers, MaxManifestBytes: c.MaxManifestBytes, MaxConfigBytes: c.MaxConfigBytes,
		MaxLayerBytes: c.MaxLayerBytes,
		MaxImageBytes: c.MaxImageBytes, MaxLayerMemoryBytes: c.MaxLayerMemoryBytes, MinFreePercent: c.MinFreePercent,
		MaxLayerEntries: c.MaxLayerEntries, MaxPullLayers: c.PullLayers(cores), MaxParallelLayers: c.Downloads(cores),
		MaxLayerConnections: c.MaxLayerConnections, StallTimeout: c.StallTimeout.Duration, MaxBufferBytes: c.MaxBufferBytes,
		FirstByteTimeout: c.FirstByteTimeout.Duration, ForeignLayerURLs: c.ForeignLayerURLs,
		Possession: c.Possession, Gunzip: n.gunzip, Unpackers: asCrew(n.crew),
		PullSeen: n.metrics.Pull,
		Verifier: verifierOf(n, cfg.Verifier), Dirty: n.imageFlusher.Dirty, Logger: n.log, BootID: n.facts.BootID,
		InUse: func() (map[string]struct{}, bool) { return n.pods.Catalog.Layers() },
	}
}

// verifierOf is who is asked about images; nil when none is configured.
func verifierOf(n *node, v config.Verifier) image.Verifier {
	if v.Dir == "" {
		return nil
	}
	return &verifier.Dir{Path: v.Dir, Max: v.Max, Timeout: v.Timeout.Duration, Run: n.groups.helpers.Run, Log: n.log}
}

func (n *node) openPods(context.Context) (err error) {
	var plugins pod.Plugins // no plugins are nil, not a pointer to nothing
	switch {
	case !n.cfg.NRIEnabled() && n.cfg.NRI.Validator.Enable:
		n.log.Warn("nri.validator judges nothing, because NRI is off by nri.enable or by the root")
	case n.cfg.NRIEnabled():
		n.plugins = nri.New(nriConfig(n.cfg, n.specHost(), n.log))
		plugins = n.plugins
	}
	cfg := pod.Config{
		Layout: sandbox.Layout{Root: n.cfg.Root, State: n.cfg.State, Instance: n.cfg.Instance(), NetNS: "/run/netns"},
		Boot:   n.facts.BootID, Bundle: bundles(n), Runtime: n.driver, Network: n.network, Plugins: plugins,
		UserNS:  n.features.usernsError,
		Refused: func(handler string) error { return refusedForHoles(n, handler) },
		Cgroups: n.groups.driver(), Dirty: n.flusher.DirtyRecord, Log: n.log,
		Released: func(layers []string) { image.Released(n.images, layers) },
		Abandon:  n.cfg.Timeouts.CreateAbandon.Duration, Retry: op.Backoff{}, StepSeen: n.metrics.Step,
	}
	n.pods, err = pod.Open(cfg)
	if err != nil || n.plugins == nil {
		return err
	}
	if err := n.plugins.Start(n.pods); err != nil { // pods run without plugins, as they did before the node had NRI
		n.log.Warn("NRI is off: mend what is named and restart the daemon, or set nri.enable to false", "error", err)
	}
	return nil
}

// bundles is what this node has for what OCI runtimes are asked for.
func bundles(n *node) bundle.Builder {
	b := bundle.Builder{
		Host: n.specHost(), Init: n.monitor, Images: imageSource{n.images}, Cgroups: n.groups.driver(),
		Naming:  n.groups.naming,
		Devices: devices(n.cfg, n.log).Inject, Delegated: host.Delegated,
		Sysctls: func() map[string]string { return podSysctls(n.settings.config.Load().Pods) },
		Handlers: bundle.Handlers{
			Find: func(name string) (runtime.Handler, error) { return n.settings.handlers.Load().find(name) },
			Spec: func(name string) (runtime.Handler, spec.Handler, error) {
				return n.settings.handlers.Load().findSpec(name)
			},
		},
	}
	if c := n.confinement; c.profiles != nil { // else it would be a pointer to nothing
		b.AppArmor = c.profiles
	}
	if l := n.confinement.labels; l != nil {
		b.Labels.SELinux, b.InitFile = l.forNew, l.program
	}
	return b
}

// nriConfig is where NRI plugins are and what they may take.
func nriConfig(cfg *config.Config, host spec.Host, log *slog.Logger) nri.Config {
	c := cfg.NRI
	return nri.Config{
		Name: cri.RuntimeName, Release: version, Instance: cfg.Instance(),
		Socket: c.Socket, PluginDir: c.PluginDir, ConfigDir: c.ConfigDir,
		RegistrationTimeout: c.RegistrationTimeout.Duration, RequestTimeout: c.RequestTimeout.Duration,
		SynchronizationTimeout: c.SynchronizationTimeout.Duration, Devices: devices(cfg, log).Inject, Host: host, Log: log,
		Validator: validatorOf(c.Validator),
	}
}

// validatorOf is the validator of NRI as its library wants it.
func validatorOf(v config.Validator) *validator.DefaultValidatorConfig {
	return &validator.DefaultValidatorConfig{
		Enable: v.Enable, RequiredPlugins: v.RequiredPlugins, TolerateMissingAnnotation: v.TolerateMissing,
		RejectOCIHookAdjustment: v.RejectHooks, RejectNamespaceAdjustment: v.RejectNamespaces,
		RejectSysctlAdjustment: v.RejectSysctls, RejectRuntimeDefaultSeccompAdjustment: v.RejectDefaultSeccomp,
		RejectUnconfinedSeccompAdjustment: v.RejectUnconfinedSeccomp, RejectCustomSeccompAdjustment: v.RejectCustomSeccomp,
	}
}

// podSysctls are the defaults for pods that have a network of their own.
func podSysctls(cfg config.Pods) map[string]string {
	set := map[string]string{}
	if cfg.UnprivilegedPorts {
		set["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	if cfg.UnprivilegedICMP {
		set["net.ipv4.ping_group_range"] = "0 2147483647" // every group that the kernel takes there
	}
	return set
}

// devices are those that vendors describe.
func devices(cfg *config.Config, log *slog.Logger) *cdi.Devices {
	return &cdi.Devices{Dirs: cfg.CDI.SpecDirs, Log: log}
}

// imageSource gives a pod its images as it wants them.
type imageSource struct{ store *image.Store }

// Use holds the layers of an image until the pod's record names them.
func (s imageSource) Use(asked *runtimeapi.ImageSpec) (bundle.Image, func(), error) {
	img, release, err := s.store.Use(asked.GetImage())
	if err != nil {
		return bundle.Image{}, nil, err
	}
	names := []string{asked.GetUserSpecifiedImage(), asked.GetImage()}
	return bundle.Image{
		ID: img.ID, Ref: img.RepoDigest(names...), Config: img.Config.Config, Layers: img.Layers,
		Artifact: img.Artifact, Dirs: s.store.LayerDirs(img),
		Confirm: func(ctx context.Context, namespace string) error {
			return image.Confirm(ctx, s.store, img, namespace, names...)
		},
	}, release, nil
}

// specHost is what the facts mean for a container's spec.
func (n *node) specHost() spec.Host {
	f := n.facts
	return spec.Host{
		KernelVersion: f.Kernel, Arch: f.Arch, CgroupV2: f.Cgroup == host.CgroupV2,
		SwapAccounting: f.SwapAccounting, HugepageSizes: f.HugepageSizes, BoundingCaps: f.BoundingCaps,
		HasResource: f.HasResource,
		OOMScoreAdj: f.OOMScoreAdj, Rlimits: f.Rlimits, SELinux: n.confinement.labels != nil,
		Seccomp: f.Seccomp, DefaultSeccomp: host.DefaultSeccomp,
		AppArmor: f.AppArmor,
	}
}

// recover serves what the records say at once, and finds out behind that what still runs.
func (n *node) recover(ready func()) {
	adopted := n.pods.Recover()
	n.opened.Store(true)
	n.timeline.Mark("serve")
	ready()
	n.supervisor.Ready("Serving CRI at " + n.cfg.Socket)
	n.log.Info("the daemon is ready", "socket", n.cfg.Socket, "instance", n.cfg.Instance(),
		"runtime", n.settings.handlers.Load().fallback, "version", version, "start", n.timeline)
	n.background.run(n.driver.Watch)
	n.background.run(func(ctx context.Context) { keepRestarting(ctx, n.pods, adopted, n.log) })
	n.background.run(func(ctx context.Context) { boundMemory(ctx, n.memory, n.cfg.Limits.Memory, adopted) })
	n.background.run(func(ctx context.Context) {
		<-adopted
		n.timeline.Mark("adopt")
		if err := n.images.Sweep(ctx); err != nil && !errors.Is(err, context.Canceled) {
			n.log.Warn("sweep of unused layers is not complete; the next start tries again", "error", err)
		}
		n.preload.start()
	})
}

// close ends the daemon's own work and makes durable what is not yet. The pods run on.
func (n *node) close() error {
	n.pods.Close()
	if n.plugins != nil {
		n.plugins.Close()
	}
	n.preload.close()
	errs := []error{n.streams.Close(), n.network.CNI.Close(), n.images.Close()}
	n.background.end()
	closeCrew(n.crew)
	n.memory.Close()
	n.groups.tidy()
	return errors.Join(errs...)
}

// info is what a verbose Status shows.
func (n *node) info() map[string]any {
	handlers, net := n.settings.handlers.Load(), n.network.CNI.Status()
	return map[string]any{
		"config": n.settings.config.Load().TOML(), "host": n.facts, "instance": n.cfg.Instance(),
		"runtimes": handlers.found, "defaultRuntime": handlers.fallback,
		"userNamespaces": n.features.get().info(), "startup": n.timeline.Steps(), "problems": problems(n),
		"events": n.pods.Feed.EventCounts(),
		"network": map[string]any{
			"name": net.Network, "file": net.File, "plugins": net.Plugins, "capabilities": net.Capabilities,
		},
	}
}
