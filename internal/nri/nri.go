// Package nri lets plugins of the Node Resource Interface take part in the lives of pods and containers.
//
// It stands between the pods, which tell of moments and ask for changes (pod.Plugins), and the adaptation of the NRI
// project, which speaks to the plugins, keeps their order, bounds what each may take, and drops one that does not
// answer. Nothing here runs and nothing is allocated unless Plugins are made.
package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	validator "github.com/containerd/nri/plugins/default-validator"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/listen"
	"berth/internal/pod"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Config is where plugins are and what they may take. All is required but Devices and Validator.
type Config struct {
	Name, Release          string // of the runtime, as plugins are told it
	Instance               string // of this daemon: what it makes beside the socket has it in its name
	Socket                 string // where plugins connect; "" lets none
	PluginDir              string // programs that are started with the daemon
	ConfigDir              string // their configuration, <index>-<name>.conf or <name>.conf
	RegistrationTimeout    time.Duration
	RequestTimeout         time.Duration
	SynchronizationTimeout time.Duration
	Devices                func(ctx context.Context, sp *specs.Spec, names []string) error // injects CDI devices
	Host                   spec.Host                                                       // what limits it has
	Validator              *validator.DefaultValidatorConfig                               // nil or not enabled: none
	Log                    *slog.Logger
}

// Plugins are all plugins of the node. Until Start there are none.
type Plugins struct {
	cfg      Config
	pods     *pod.Pods
	messages messages
	a        *adaptation.Adaptation // nil while NRI is not on
	socket   *socket                // nil where none can connect
	roll     roll
	health   health
	joining  joining
	changing changing
	change   func(context.Context, []pod.Change) // makes what plugins want done to one container
}

// New makes Plugins. It starts nothing.
func New(cfg Config) *Plugins {
	p := &Plugins{cfg: cfg}
	if cfg.validates() {
		p.roll.own = 1
	}
	p.change = func(ctx context.Context, of []pod.Change) { apply(ctx, p, of) }
	p.joining.tell = func(e event) []pod.Change { return tellLate(p, e) }
	return p
}

// Start starts the plugins that are installed and lets others connect. It waits until those that are installed have
// seen the pods, each as long as its timeouts allow: no container is made without them.
//
// A part that cannot be had is left out, and Status says so: the socket, or the plugins that are installed. NRI is
// off where another process listens at the socket: the plugins that are installed are then that process's to start,
// and two of each on a node would work against each other. Start returns why NRI is off; the caller goes on without
// it.
func (p *Plugins) Start(pods *pod.Pods) error {
	p.pods, p.messages = pods, messages{pods, pods.Sessions}
	defer p.health.begin()()
	libraryLog.to(logger{p.cfg.Log, &p.health})
	adaptation.SetPluginRegistrationTimeout(p.cfg.RegistrationTimeout)
	adaptation.SetPluginRequestTimeout(p.cfg.RequestTimeout)
	err := p.openSocket()
	if err == nil {
		err = p.startPlugins()
	}
	if err == nil {
		err = p.placeSocket()
	}
	if err != nil {
		err = fmt.Errorf("start NRI: %w", err)
		p.health.fail(err)
	}
	return err
}

// openSocket sees whether the socket can be had. It returns an error only where it is another process's.
func (p *Plugins) openSocket() error {
	if p.cfg.Socket == "" {
		return nil
	}
	s := newSocket(p.cfg.Socket, p.cfg.Instance)
	err := s.prepare()
	if errors.Is(err, errInUse) {
		return err
	}
	if err != nil {
		p.warn("plugins cannot connect", err)
		return nil
	}
	p.socket = s
	return nil
}

// startPlugins starts the adaptation with the plugins that are installed, and without them where that fails: a
// directory with a program that has no name of a plugin is refused whole.
func (p *Plugins) startPlugins() error {
	err := checkInstalled(p.cfg.PluginDir, p.cfg.ConfigDir)
	if err == nil {
		err = p.startAdaptation(p.cfg.PluginDir)
	}
	if err == nil {
		return nil
	}
	p.warn("no plugin of nri.plugin_dir is started", err)
	return p.startAdaptation("")
}

func (p *Plugins) startAdaptation(pluginDir string) error {
	a, err := adaptation.New(p.cfg.Name, p.cfg.Release, p.synchronise, p.update, p.options(pluginDir)...)
	if err != nil {
		return err
	}
	p.a = a
	if err := a.Start(); err != nil {
		a.Stop()
		p.a = nil
		return err
	}
	return nil
}

func (p *Plugins) options(pluginDir string) []adaptation.Option {
	extra := p.cfg.SynchronizationTimeout - p.cfg.RequestTimeout
	return []adaptation.Option{
		adaptation.WithPluginPath(pluginDir), adaptation.WithPluginConfigPath(p.cfg.ConfigDir),
		adaptation.WithDisabledExternalConnections(), // placeSocket has its own listener
		adaptation.WithMetrics(&p.roll),
		withValidator(p.cfg, &p.roll),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{bounded(extra)}, nil),
	}
}

// placeSocket lets plugins connect. It returns an error only where another process has taken the path meanwhile.
func (p *Plugins) placeSocket() error {
	if p.socket == nil {
		return nil
	}
	l, err := net.Listen("unix", p.socket.private)
	if err == nil {
		waits := func(err error) { p.cfg.Log.Warn("NRI: a plugin that connects has to wait", "error", err) }
		err = acceptPluginConnections(p.a, listen.Lasting{Listener: l, Waits: waits})
	}
	if err == nil {
		err = p.socket.place()
	}
	if err == nil {
		return nil
	}
	p.socket = nil
	if errors.Is(err, errInUse) {
		p.a.Stop()
		p.a = nil
		return err
	}
	p.warn("plugins cannot connect", err)
	return nil
}

// Close ends the plugins that were started and disconnects the others.
func (p *Plugins) Close() {
	if p.socket != nil {
		p.socket.placed.Remove()
	}
	if p.a != nil {
		p.a.Stop()
	}
}

// none reports that there are no plugins. One that joins later is shown what there is then. What a joining plugin must
// not miss is asked between Hold and its release, when none can join, or kept until it has joined.
func (p *Plugins) none() bool { return p.a == nil || p.roll.count.Load() == 0 }

// Hold keeps plugins from joining until release is called. What has happened before is told before. Release may have
// to change other containers.
func (p *Plugins) Hold(ctx context.Context) (release func(), err error) {
	if p.a == nil {
		return func() {}, nil
	}
	return hold(ctx, p, p.a)
}

// synchronise shows a plugin that joins what there is, and does what it wants done. What happens from then on is told
// when the adaptation has taken the plugin in, or dropped it.
func (p *Plugins) synchronise(ctx context.Context, show adaptation.SyncCB) error {
	p.joining.begin()
	a := p.a
	defer func() {
		go func() {
			if release, err := hold(context.Background(), p, a); err == nil {
				release()
			}
		}()
	}()
	records, in := p.pods.Known()
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, r := range records {
		pods = append(pods, p.messages.pod(r))
		for _, c := range r.Containers {
			if in[c.ID] != nil {
				containers = append(containers, p.messages.container(r, c, nil))
			}
		}
	}
	tooLarge := func(what string) func(string, int) {
		return func(id string, size int) {
			p.cfg.Log.Warn("NRI: a plugin that joins is not told of a "+what+": it is too large for a message",
				what, id, "bytes", size, "allowed", messageRoom)
		}
	}
	updates, err := recovered(show)(ctx, sendable(pods, tooLarge("pod")), sendable(containers, tooLarge("container")))
	if err != nil {
		return err
	}
	return changeFirst(ctx, p, changes(updates, nil))
}

// update does what a plugin wants done by itself, and returns what failed and may not.
func (p *Plugins) update(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, _ error) {
	for _, u := range updates {
		if left := p.pods.Limiter.Apply(ctx, changes([]*api.ContainerUpdate{u}, nil)); len(left) > 0 &&
			!u.IgnoreFailure {
			failed = append(failed, u)
		}
	}
	return failed, nil
}

// changes are what plugins want of other containers, as pods take it.
func changes(updates []*api.ContainerUpdate, evict []*api.ContainerEviction) (all []pod.Change) {
	for _, u := range updates {
		if ch, ok := change(u); ok {
			all = append(all, ch)
		}
	}
	for _, e := range evict {
		all = append(all, pod.Change{Container: sandbox.ID(e.GetContainerId()), Evict: true})
	}
	return all
}

// change is what plugins want of one other container, and whether that is anything.
func change(u *api.ContainerUpdate) (pod.Change, bool) {
	in := u.GetLinux().GetResources()
	ch := pod.Change{Container: sandbox.ID(u.GetContainerId()), Limits: limits(in), Pids: pids(in),
		Cannot: cannotChange(in)}
	return ch, ch.Limits != nil
}

// Tell tells all plugins of a moment. One that is told later has no answer.
func (p *Plugins) Tell(
	ctx context.Context, m pod.Moment, r *sandbox.Record, c *sandbox.Container,
) ([]pod.Change, error) {
	e := event{m, r, c}
	if !m.Asks() && p.joining.keep(e) {
		return nil, nil
	}
	return p.tellNow(ctx, e)
}

func tell(
	ctx context.Context, a *adaptation.Adaptation, m pod.Moment, sandbox *api.PodSandbox, ctr *api.Container,
) ([]pod.Change, error) {
	switch m {
	case pod.PodRun:
		return nil, a.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: sandbox})
	case pod.PodLimited:
		return nil, a.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: sandbox})
	case pod.PodStop:
		return nil, a.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: sandbox})
	case pod.PodRemove:
		return nil, a.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: sandbox})
	case pod.ContainerCreated:
		return nil, a.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: sandbox, Container: ctr})
	case pod.ContainerStart:
		return nil, a.StartContainer(ctx, &api.StartContainerRequest{Pod: sandbox, Container: ctr})
	case pod.ContainerStarted:
		return nil, a.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: sandbox, Container: ctr})
	case pod.ContainerLimited:
		return nil, a.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: sandbox, Container: ctr})
	case pod.ContainerStop:
		resp, err := a.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox, Container: ctr})
		return changes(resp.GetUpdate(), nil), err
	case pod.ContainerRemove:
		return nil, a.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: sandbox, Container: ctr})
	}
	return nil, fmt.Errorf("plugins know no moment %d", m)
}

// Adjust changes the spec of a container as all plugins together want it. Two that want different things are an error
// that names them.
func (p *Plugins) Adjust(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec,
) ([]pod.Change, error) {
	if p.none() {
		return nil, unattended(ctx, p, r, c, sp)
	}
	resp, err := p.a.CreateContainer(ctx, &api.CreateContainerRequest{
		Pod: p.messages.pod(r), Container: p.messages.container(r, c, sp),
	})
	if err != nil {
		return nil, p.roll.blame(ctx, err)
	}
	if ctx.Err() != nil { // the plugins may have answered all the same
		return nil, context.Cause(ctx)
	}
	also := changes(resp.GetUpdate(), resp.GetEvict())
	if resp.GetAdjust() == nil {
		return also, nil
	}
	g := nrigen.SpecGenerator(&generator{sp: sp},
		nrigen.WithRdtResolver(func(class string) (*specs.LinuxIntelRdt, error) {
			if class == "" {
				return nil, nil
			}
			return &specs.LinuxIntelRdt{ClosID: class}, nil
		}),
		nrigen.WithBlockIOResolver(func(class string) (*specs.LinuxBlockIO, error) {
			if class == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("block I/O class %q: no classes are configured on this node", class)
		}),
		nrigen.WithResourceChecker(func(res *specs.LinuxResources) error {
			for _, w := range spec.TakeWhatIsLacking(res, p.cfg.Host) {
				p.cfg.Log.Warn("a container gets less than plugins asked for", "pod", r.ID, "container", c.ID, "reason", w)
			}
			return nil
		}),
		nrigen.WithCDIDeviceInjector(func(sp *specs.Spec, names []string) error { return p.cfg.Devices(ctx, sp, names) }))
	if err := g.Adjust(resp.GetAdjust()); err != nil {
		return nil, fmt.Errorf("adjust the spec: %w", err)
	}
	return also, context.Cause(ctx)
}

// Limits asks all plugins what a container's limits are to be changed to.
func (p *Plugins) Limits(
	ctx context.Context, r *sandbox.Record, c *sandbox.Container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, []pod.Change, error) {
	if p.none() {
		return want, nil, nil
	}
	resp, err := p.a.UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: p.messages.pod(r), Container: p.messages.container(r, c, nil), LinuxResources: fromLimits(want),
	})
	if err != nil {
		return nil, nil, p.roll.blame(ctx, err)
	}
	adjusted := want
	var others []*api.ContainerUpdate
	var own []pod.Change
	for _, u := range resp.GetUpdate() {
		if u.GetContainerId() != string(c.ID) {
			others = append(others, u)
			continue
		}
		in := u.GetLinux().GetResources()
		if err := cannotChange(in); err != nil {
			if u.GetIgnoreFailure() {
				continue
			}
			return nil, nil, err
		}
		adjusted = adjust(want, limits(in))
		if n := pids(in); n != 0 {
			own = append(own, pod.Change{Container: c.ID, Pids: n})
		}
	}
	return adjusted, append(own, changes(others, resp.GetEvict())...), nil
}

// PodLimits tells all plugins that a pod's resources are about to be changed.
func (p *Plugins) PodLimits(
	ctx context.Context, r *sandbox.Record, overhead, resources *runtimeapi.LinuxContainerResources,
) error {
	if p.none() {
		return nil
	}
	_, err := p.a.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
		Pod: p.messages.pod(r), OverheadLinuxResources: fromLimits(overhead), LinuxResources: fromLimits(resources),
	})
	return p.roll.blame(ctx, err)
}
