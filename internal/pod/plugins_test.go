package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup/limits"
	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// asked are plugins that answer as the test says.
type asked struct {
	Plugins
	change []Change
	refuse error
}

func (a *asked) Hold(context.Context) (func(), error) { return func() {}, nil }
func (a *asked) Tell(_ context.Context, m Moment, _ *sandbox.Record, _ *sandbox.Container) ([]Change, error) {
	if m == PodRun || m == ContainerStart {
		return nil, a.refuse
	}
	return nil, nil
}
func (a *asked) PodLimits(
	context.Context, *sandbox.Record, *runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources,
) error {
	return a.refuse
}
func (a *asked) Adjust(context.Context, *sandbox.Record, *sandbox.Container, *specs.Spec) ([]Change, error) {
	return a.change, a.refuse
}
func (a *asked) Limits(
	_ context.Context, _ *sandbox.Record, _ *sandbox.Container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, []Change, error) {
	return want, a.change, a.refuse
}

// audience is plugins that note the ends that they are told of.
type audience struct {
	asked
	mu   sync.Mutex // guards ends
	ends []string
}

func (a *audience) Tell(_ context.Context, m Moment, r *sandbox.Record, c *sandbox.Container) ([]Change, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch m {
	case PodStop:
		a.ends = append(a.ends, "pod "+string(r.ID))
	case ContainerStop:
		a.ends = append(a.ends, "container "+string(c.ID))
	}
	return nil, nil
}

func (a *audience) told() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ends)
}

// Plugins that join before the pods are adopted are not shown what lived in another boot, whose processes are gone and
// whose PIDs others may have. They are told of its end, once.
func TestPluginsAreNotShownAnotherBoot(t *testing.T) {
	for name, node := range map[string]struct {
		boot string
		left bool // the run directory
		want bool // it is known
	}{
		"the daemon restarts":            {"boot-1", true, true},
		"the node restarts":              {"boot-2", true, false},
		"a node that is a container too": {"boot-1", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, a := open(t), &audience{}
			m := &missing{driver: b.drv, process: sleeper(t, node.want)}
			b.cfg.Runtime, b.cfg.Plugins = m, a
			b.end(t)
			unmount := inMemory(t, b.cfg.State)
			b.reopen(t)
			pod, ctr := started(t, b)
			b.end(t)
			if !node.want {
				clear(m.live)
				b.unmount(t, pod)
				unmountForTest(t, b.cfg.Rootfs(pod, ctr))
			}
			if !node.left {
				unmount()
			}
			b.cfg.Boot = node.boot
			pods, err := Open(b.cfg)
			if err != nil {
				t.Fatal(err)
			}
			b.Pods, b.drv.pods = pods, pods
			known := func() bool {
				records, in := b.Known()
				if len(records) != len(in) {
					t.Errorf("%d pods and %d containers are known", len(records), len(in))
				}
				return in[ctr] != nil
			}
			if got := known(); got != node.want {
				t.Errorf("before the adoption, the container is known: %v", got)
			}
			m.inv = runtime.Inventory{Containers: map[string]runtime.Found{string(ctr): {State: runtime.Running}}}
			<-pods.Recover()
			if got := known(); got != node.want {
				t.Errorf("after the adoption, the container is known: %v", got)
			}
			if node.want {
				return
			}
			wait(t, "the pod to be stopped", func() bool { r, _ := b.Catalog.Get(pod); return r.State == sandbox.Stopped })
			b.end(t)
			if got, want := a.told(), []string{"container " + string(ctr), "pod " + string(pod)}; !slices.Equal(got, want) {
				t.Errorf("told of the ends of %v, wanted %v", got, want)
			}
			b.reopen(t)
		})
	}
}

// holding are plugins that know whether others may join.
type holding struct {
	asked
	t     *testing.T
	holds atomic.Int32
	asks  atomic.Int32
}

func (h *holding) Hold(context.Context) (func(), error) {
	if h.holds.Add(1) != 1 {
		h.t.Error("held twice: a plugin that joins between would hold up both for ever")
	}
	return func() { h.holds.Add(-1) }, nil
}

func (h *holding) ask(what string, asks bool) {
	if h.asks.Add(1); (h.holds.Load() == 1) != asks {
		h.t.Errorf("%s, which waits for plugins that join: %v", what, !asks)
	}
}

func (h *holding) Tell(_ context.Context, m Moment, _ *sandbox.Record, _ *sandbox.Container) ([]Change, error) {
	h.ask(fmt.Sprint("moment ", m), m.Asks())
	return nil, nil
}
func (h *holding) PodLimits(
	context.Context, *sandbox.Record, *runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources,
) error {
	h.ask("the limits of a pod", true)
	return nil
}
func (h *holding) Adjust(context.Context, *sandbox.Record, *sandbox.Container, *specs.Spec) ([]Change, error) {
	h.ask("a container", true)
	return h.change, nil
}
func (h *holding) Limits(
	_ context.Context, _ *sandbox.Record, _ *sandbox.Container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, []Change, error) {
	h.ask("limits", true)
	return want, nil, nil
}

// TestOnlyQuestionsWaitForPluginsThatJoin follows a pod through its life: what plugins are asked about waits until one
// that joins has joined, so that it is asked, too, and what happens does not.
func TestOnlyQuestionsWaitForPluginsThatJoin(t *testing.T) {
	b, h := open(t), &holding{t: t}
	g := &groups{Cgroups: b.cfg.Cgroups, during: func() {
		if h.holds.Load() != 0 {
			t.Error("plugins that join wait for a change to a cgroup")
		}
	}}
	b.cfg.Plugins, b.cfg.Cgroups = h, g
	b.reopen(t)
	pod, ctr := started(t, b)
	some := &runtimeapi.LinuxContainerResources{CpuShares: 300}
	h.change = []Change{{Container: ctr, Limits: some}}
	if _, err := b.Create(t.Context(), pod, containerConfig("d")); err != nil || len(g.set) != 1 {
		t.Errorf("a container for which another is changed: %v, %d changes", err, len(g.set))
	}
	for _, err := range []error{
		b.Limiter.Container(t.Context(), ctr, some), b.Limiter.Pod(t.Context(), pod, nil, some),
		b.Stop(t.Context(), pod), b.Remove(t.Context(), pod),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := h.asks.Load(); got < 13 {
		t.Errorf("plugins heard of %d things", got)
	}
}

// joins are plugins of which one joins from then on, and does not end with it.
type joins struct {
	asked
	t     *testing.T
	now   atomic.Bool
	waits chan struct{} // told of each question that waits for it
}

func (j *joins) Hold(ctx context.Context) (func(), error) {
	if !j.now.Load() {
		return func() {}, nil
	}
	j.waits <- struct{}{}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-j.t.Context().Done():
		return nil, errors.New("the test has ended")
	}
}

// TestStopsWaitForNoPluginThatJoins wants a container that is being started, and a pod whose resources are being
// changed, to be stopped while a plugin joins, which these wait for.
func TestStopsWaitForNoPluginThatJoins(t *testing.T) {
	b, j := open(t), &joins{t: t, waits: make(chan struct{})}
	b.cfg.Plugins, b.cfg.Cgroups = j, &groups{Cgroups: b.cfg.Cgroups}
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("p"), "")
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := b.Create(t.Context(), pod, containerConfig("c"))
	if err != nil {
		t.Fatal(err)
	}
	j.now.Store(true)
	defer j.now.Store(false)
	some := &runtimeapi.LinuxContainerResources{CpuShares: 300}
	for _, c := range []struct {
		what      string
		ask, stop func() error
	}{
		{"a start", func() error { return b.Start(t.Context(), ctr) },
			func() error { return b.StopContainer(t.Context(), ctr, 0) }},
		{"a pod's resources", func() error { return b.Limiter.Pod(t.Context(), pod, nil, some) },
			func() error { return b.Stop(t.Context(), pod) }},
	} {
		asked, stopped := make(chan error, 1), make(chan error, 1)
		go func() { asked <- c.ask() }()
		<-j.waits
		go func() { stopped <- c.stop() }()
		select {
		case err := <-stopped:
			if asks := <-asked; err != nil || !fail.Is(asks, errdefs.ErrAborted) {
				t.Errorf("%s: stopped with %v, and ended with %v", c.what, err, asks)
			}
		case <-time.After(timeouts.For(20 * time.Second)):
			t.Fatalf("%s: the stop waits for the plugin", c.what)
		}
	}
}

// groups are cgroups that note the limits that they are given.
type groups struct {
	Cgroups
	set    []*specs.LinuxResources
	was    limits.Was // of the last
	fail   error
	during func() // called by each change; nil does nothing
	back   int    // how often something was put back
}

func (g *groups) SetLimits(
	_ context.Context, _ string, was limits.Was, want *specs.LinuxResources,
) (func() error, error) {
	g.was = was
	if g.during != nil {
		g.during()
	}
	if g.fail != nil && want.Pids == nil {
		return nil, g.fail
	}
	g.set = append(g.set, want)
	return func() error { g.back++; return nil }, nil
}

// What plugins want of others beside a container that one of them refuses is not done: that container is never made.
func TestRefusedContainerChangesNoOther(t *testing.T) {
	b, a := open(t), &asked{}
	g := &groups{Cgroups: b.cfg.Cgroups}
	b.cfg.Plugins, b.cfg.Cgroups = a, g
	b.reopen(t)
	pod, first := started(t, b)
	a.change = []Change{{Container: first, Limits: &runtimeapi.LinuxContainerResources{CpuShares: 700}, Pids: 9}}
	a.refuse = errors.New("no")
	if _, err := b.Create(t.Context(), pod, containerConfig("d")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a container that is refused: %v", err)
	}
	limiter := b.Limiter
	if err := limiter.Container(t.Context(), first, &runtimeapi.LinuxContainerResources{CpuShares: 5}); !errors.Is(err,
		errdefs.ErrFailedPrecondition) {
		t.Errorf("limits that are refused: %v", err)
	}
	if len(g.set) > 0 {
		t.Errorf("set for a container that was refused: %+v", g.set)
	}
	a.refuse = nil
	if _, err := b.Create(t.Context(), pod, containerConfig("e")); err != nil {
		t.Error(err)
	}
	if len(g.set) != 2 || *g.set[0].Pids.Limit != 9 || *g.set[1].CPU.Shares != 700 {
		t.Errorf("set for one that was not: %+v", g.set)
	}
}

// Whatever keeps plugins from agreeing is a refusal, also that one did not answer in time. It is not the caller whose
// time is over.
func TestRefusalsByPlugins(t *testing.T) {
	b, a := open(t), &asked{}
	b.cfg.Plugins, b.cfg.Cgroups = a, &groups{Cgroups: b.cfg.Cgroups}
	b.reopen(t)
	pod, ctr := started(t, b)
	created, err := b.Create(t.Context(), pod, containerConfig("d"))
	if err != nil {
		t.Fatal(err)
	}
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 700}
	for _, a.refuse = range []error{
		errors.New("no"), fmt.Errorf("a plugin failed to handle a request: %w", context.DeadlineExceeded),
	} {
		for what, ask := range map[string]func() error{
			"a pod":       func() error { _, err := b.Run(t.Context(), podConfig("e"), ""); return err },
			"a container": func() error { _, err := b.Create(t.Context(), pod, containerConfig("e")); return err },
			"a start":     func() error { return b.Start(t.Context(), created) },
			"limits":      func() error { return b.Limiter.Container(t.Context(), ctr, limits) },
			"a pod's":     func() error { return b.Limiter.Pod(t.Context(), pod, nil, limits) },
		} {
			if err := ask(); !fail.Is(err, errdefs.ErrFailedPrecondition) {
				t.Errorf("%s that is refused with %v is %s: %v", what, a.refuse, fail.KindOf(err).Name, err)
			}
		}
	}
	a.refuse = nil
}

// A change is done whole or not at all.
func TestHalfAChangeIsPutBack(t *testing.T) {
	b := open(t)
	g := &groups{Cgroups: b.cfg.Cgroups, fail: errors.New("no")}
	b.cfg.Cgroups = g
	b.reopen(t)
	_, first := started(t, b)
	shares := &runtimeapi.LinuxContainerResources{CpuShares: 700}
	for name, c := range map[string]struct {
		change Change
		set    int
	}{
		"refused by the kernel": {Change{Container: first, Limits: shares, Pids: 9}, 1},
		"beyond what can be":    {Change{Container: first, Limits: shares, Pids: 9, Cannot: errors.New("a class")}, 0},
	} {
		g.set, g.back = nil, 0
		if failed := b.Limiter.Apply(t.Context(), []Change{c.change}); len(failed) != 1 || len(g.set) != c.set ||
			g.back != c.set {
			t.Errorf("%s: failed %d, set %d, put back %d", name, len(failed), len(g.set), g.back)
		}
	}
}

// What the runtime makes of CPU shares shows in the other containers that it made, the nearest in time first.
func TestPeersOfAContainer(t *testing.T) {
	b := open(t)
	g := &groups{Cgroups: b.cfg.Cgroups}
	b.cfg.Cgroups = g
	b.reopen(t)
	var pods, containers []sandbox.ID
	for i, shares := range []int64{1024, 512, 2, 0, 256, 128} {
		pod, err := b.Run(t.Context(), podConfig(fmt.Sprint("p", i)), "")
		if err != nil {
			t.Fatal(err)
		}
		config := containerConfig("c")
		config.Linux = &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: shares}}
		ctr, err := b.Create(t.Context(), pod, config)
		if err != nil {
			t.Fatal(err)
		}
		pods, containers = append(pods, pod), append(containers, ctr)
	}
	begin := time.Now()
	for i, after := range []time.Duration{0, 50, 100, 101, 130, 300} { // made after begin
		p := b.Catalog.index.Load().pods[pods[i]]
		err := p.update(t.Context(), "test", func(r *sandbox.Record) error {
			if i == 5 {
				r.Runtime = "another"
			}
			return r.Edit(containers[i], func(c *sandbox.Container) error {
				c.CreatedAt, c.Cgroup = begin.Add(after*time.Second), fmt.Sprint("/", i)
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := &runtimeapi.LinuxContainerResources{CpuShares: 5}
	if err := b.Limiter.Container(t.Context(), containers[2], want); err != nil {
		t.Fatal(err)
	}
	var got []string
	for group, shares := range g.was.Peers {
		got = append(got, fmt.Sprint(group, " ", shares))
	}
	if want := []string{"/4 256", "/1 512", "/0 1024"}; *g.was.Limits.CPU.Shares != 2 || !slices.Equal(got, want) {
		t.Errorf("was %d shares, beside %v, wanted %v", *g.was.Limits.CPU.Shares, got, want)
	}
}
