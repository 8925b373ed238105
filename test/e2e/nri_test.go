package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// plugin is an NRI plugin that notes what it is told, and does as the test says.
type plugin struct {
	stub.Stub

	mu      sync.Mutex // guards what follows
	notes   []string
	adjust  func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	limit   func(*api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error)
	refuse  map[string]error // by the note
	hang    time.Duration    // of every answer
	joining func()           // called while it is shown what there is
	look    func(moment string, s *api.PodSandbox, c *api.Container)
	known   []string      // containers at synchronisation
	synced  chan struct{} // closed when it was shown what there is
	dropped chan struct{}
}

func (p *plugin) note(text string) error {
	p.mu.Lock()
	p.notes = append(p.notes, text)
	err, hang := p.refuse[text], p.hang
	p.mu.Unlock()
	time.Sleep(hang)
	return err
}

// see shows a moment to the test.
func (p *plugin) see(moment string, s *api.PodSandbox, c *api.Container) {
	p.mu.Lock()
	look := p.look
	p.mu.Unlock()
	if look != nil {
		look(moment, s, c)
	}
}

func (p *plugin) told() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notes)
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) (
	[]*api.ContainerUpdate, error) {
	if p.joining != nil {
		p.joining()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range containers {
		p.known = append(p.known, c.Name+" "+c.State.String())
	}
	close(p.synced)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.see("run pod", s, nil)
	return p.note(fmt.Sprintf("run pod %d", len(s.Ips)))
}
func (p *plugin) UpdatePodSandbox(_ context.Context, _ *api.PodSandbox, _, res *api.LinuxResources) error {
	return p.note(fmt.Sprint("update pod ", res.GetMemory().GetLimit().GetValue()))
}
func (p *plugin) PostUpdatePodSandbox(context.Context, *api.PodSandbox) error {
	return p.note("pod updated")
}
func (p *plugin) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.see("stop pod", s, nil)
	return p.note("stop pod")
}
func (p *plugin) RemovePodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.see("remove pod", s, nil)
	return p.note("remove pod")
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (
	*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if err := p.note("create " + c.Name); err != nil {
		return nil, nil, err
	}
	if p.adjust == nil {
		return nil, nil, nil
	}
	return p.adjust(c)
}
func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("created " + c.Name)
}
func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("start " + c.Name)
}
func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("started " + c.Name)
}
func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, res *api.LinuxResources) (
	[]*api.ContainerUpdate, error) {
	if err := p.note("update " + c.Name); err != nil || p.limit == nil {
		return nil, err
	}
	return p.limit(c, res)
}
func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("updated " + c.Name)
}
func (p *plugin) StopContainer(_ context.Context, s *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.see("stop "+c.Name, s, c)
	return nil, p.note(fmt.Sprint("stop ", c.Name, " ", c.ExitCode))
}
func (p *plugin) RemoveContainer(_ context.Context, s *api.PodSandbox, c *api.Container) error {
	p.see("remove "+c.Name, s, c)
	return p.note("remove " + c.Name)
}

// nriNode runs f on a node with NRI on, for each runtime, side by side.
func nriNode(t *testing.T, f func(r rig)) {
	t.Helper()
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime, NRI: true})
			r.pull("busybox:latest")
			f(r)
		})
	}
}

// join connects a plugin.
func (r rig) join(index, name string, p *plugin) *plugin {
	r.Helper()
	p.dropped, p.synced = make(chan struct{}), make(chan struct{})
	s, err := stub.New(p, stub.WithPluginIdx(index), stub.WithPluginName(name), stub.WithSocketPath(r.n.NRI),
		stub.WithOnClose(func() { close(p.dropped) }))
	r.ok(err)
	p.Stub = s
	r.ok(s.Start(ctx()))
	r.Cleanup(s.Stop)
	select {
	case <-p.synced:
	case <-time.After(timeouts.For(time.Minute)):
		r.Fatal("a plugin that joins is shown nothing")
	}
	return p
}

// wantTold waits until the plugin was told just this, in this order.
func (r rig) wantTold(p *plugin, want ...string) {
	r.Helper()
	late := time.Now().Add(timeouts.For(time.Minute))
	for !slices.Equal(p.told(), want) {
		if time.Now().After(late) {
			r.Fatalf("the plugin was told\n%q, wanted\n%q", p.told(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestPluginsSeeALife follows a pod through its life, past a plugin that changes nothing.
func TestPluginsSeeALife(t *testing.T) {
	nriNode(t, func(r rig) {
		p := r.join("10", "witness", &plugin{})
		s := r.pod()
		c := s.start(busybox("main", "trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done"))
		c.logged("up")
		r.ok(c.limit(&v1.LinuxContainerResources{CpuShares: 300}))
		_, err := r.n.Runtime.UpdatePodSandboxResources(ctx(),
			&v1.UpdatePodSandboxResourcesRequest{PodSandboxId: s.id,
				Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: 77}})
		r.ok(err)
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
		short := s.start(busybox("short", "exit 5"))
		short.finish()
		all := []string{"run pod 1", "create main", "created main", "start main", "started main", "update main",
			"updated main",
			"update pod 77", "pod updated", "stop main 4", "create short", "created short", "start short", "started short",
			"stop short 5"}
		r.eventually("it hears of the end of what ended by itself", func() bool {
			return slices.Contains(p.told(), "stop short 5") && len(p.told()) >= len(all)
		})
		if told := p.told(); !slices.Equal(slices.Sorted(slices.Values(told)), slices.Sorted(slices.Values(all))) {
			r.Errorf("it was told %q, wanted %q", told, all)
		}
		late := r.join("20", "late", &plugin{})
		if known := late.known; len(known) != 0 {
			r.Errorf("a plugin that joins finds %q", known)
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), s.id))
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), s.id))
		r.wantTold(late, "stop pod", "remove main", "remove short", "remove pod")
	})
}

// TestPluginsAdjust has a plugin change all sorts of things, and a second container meanwhile.
func TestPluginsAdjust(t *testing.T) {
	nriNode(t, func(r rig) {
		s := r.pod()
		first := s.start(busybox("first", "sleep 1000", limited(&v1.LinuxContainerResources{CpuShares: 512})))
		p := r.join("10", "adjuster", &plugin{})
		if !slices.Equal(p.known, []string{"first CONTAINER_RUNNING"}) {
			r.Errorf("it finds %q", p.known)
		}
		p.adjust = func(c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			a := &api.ContainerAdjustment{}
			a.AddEnv("FROM_PLUGIN", c.Name)
			a.AddAnnotation("example.org/by", "plugin")
			a.AddMount(&api.Mount{Source: r.n.Logs, Destination: "/given", Type: "bind", Options: []string{"rbind", "ro"}})
			a.AddRlimit("RLIMIT_NOFILE", 77, 66)
			a.SetLinuxCPUQuota(130000)
			a.SetLinuxCPUPeriod(100000)
			a.SetLinuxMemoryLimit(48 * mib)
			a.AddDevice(&api.LinuxDevice{Path: "/dev/full2", Type: "c", Major: 1, Minor: 7, FileMode: api.FileMode(0o666)})
			u := &api.ContainerUpdate{}
			u.SetContainerId(first.cid)
			u.SetLinuxCPUShares(700)
			return a, []*api.ContainerUpdate{u}, nil
		}
		c := s.start(busybox("main", "echo $FROM_PLUGIN; ulimit -n; ls -d /given; ls /dev/full2; sleep 1000"))
		c.logged("/dev/full2")
		r.wantText("what it prints", strings.Join(strings.Fields(c.text("stdout")), " "), "main 66 /given /dev/full2")
		c.wantLimits(&v1.LinuxContainerResources{CpuQuota: 130000, CpuPeriod: 100000, MemoryLimitInBytes: 48 * mib},
			"50331648 130000 100000")
		if got := first.status().GetResources().GetLinux().GetCpuShares(); got != 700 {
			r.Errorf("the other container has %d shares", got)
		}
		r.wantText("exec", c.exec("sh", "-c", "echo $FROM_PLUGIN"), "main")

		// What a plugin makes of an update, and what it wants by itself.
		p.limit = func(c *api.Container, res *api.LinuxResources) ([]*api.ContainerUpdate, error) {
			u := &api.ContainerUpdate{}
			u.SetContainerId(c.Id)
			u.SetLinuxMemoryLimit(2 * res.GetMemory().GetLimit().GetValue())
			return []*api.ContainerUpdate{u}, nil
		}
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 40 * mib}))
		if got := c.status().GetResources().GetLinux().GetMemoryLimitInBytes(); got != 80*mib {
			r.Errorf("limited to %d bytes", got)
		}
		u, nobody := &api.ContainerUpdate{}, &api.ContainerUpdate{}
		u.SetContainerId(first.cid)
		u.SetLinuxCPUShares(900)
		nobody.SetContainerId(strings.Repeat("0", 64))
		nobody.SetLinuxCPUShares(900)
		failed, err := p.UpdateContainers([]*api.ContainerUpdate{u, nobody})
		if err != nil || len(failed) != 1 || failed[0].ContainerId != nobody.ContainerId {
			r.Errorf("updates by itself: failed %v, %v", failed, err)
		}
		if got := first.status().GetResources().GetLinux().GetCpuShares(); got != 900 {
			r.Errorf("the other container has %d shares after the update", got)
		}
	})
}

// TestPluginLimitsWhatTheNodeLacks has a plugin limit pages of a size that no node has: the container is made without.
func TestPluginLimitsWhatTheNodeLacks(t *testing.T) {
	nriNode(t, func(r rig) {
		p := r.join("10", "adjuster", &plugin{})
		p.adjust = func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			a := &api.ContainerAdjustment{}
			a.AddLinuxHugepageLimit("3MB", 4*mib)
			return a, nil, nil
		}
		r.wantText("a container", r.pod().output(busybox("main", "echo runs")), "runs")
	})
}

// TestPluginsThatFail has plugins refuse, contradict each other and hang.
func TestPluginsThatFail(t *testing.T) {
	nriNode(t, func(r rig) {
		p := r.join("10", "refuser", &plugin{refuse: map[string]error{
			"create bad": errors.New("not here"), "start tired": errors.New("not now"), "update main": errors.New("not so"),
		}})
		s := r.pod()
		_, err := r.n.Runtime.CreateContainer(ctx(), s.id, busybox("bad", "true"), s.config)
		r.wantCode(err, codes.FailedPrecondition, "bad", "refuser", "not here")
		r.eventually("its creation is undone", func() bool { return slices.Contains(p.told(), "remove bad") })
		tired := s.create(busybox("tired", "true"))
		r.wantCode(r.n.Runtime.StartContainer(ctx(), tired.cid), codes.FailedPrecondition, "tired", "refuser", "not now")
		if st := tired.status(); st.State != v1.ContainerState_CONTAINER_CREATED {
			r.Errorf("what a plugin kept from starting is %s", st.State)
		}
		c := s.start(busybox("main", "sleep 1000"))
		r.wantCode(c.limit(&v1.LinuxContainerResources{CpuShares: 300}), codes.FailedPrecondition, "refuser", "not so")

		for _, index := range []string{"20", "30"} {
			r.join(index, "setter"+index,
				&plugin{adjust: func(c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
					a := &api.ContainerAdjustment{}
					a.AddEnv("ONE", index)
					return a, nil, nil
				}})
		}
		_, err = r.n.Runtime.CreateContainer(ctx(), s.id, busybox("torn", "true"), s.config)
		r.wantCode(err, codes.FailedPrecondition, "setter20", "setter30")
	})
}

// TestPluginThatHangs has a plugin that does not answer: it is waited for as long as the configuration says, once, and
// dropped.
func TestPluginThatHangs(t *testing.T) {
	nriNode(t, func(r rig) {
		r.configure("[nri]\nrequest_timeout = \"4s\"\n")
		r.ok(r.n.Restart())
		p := r.join("10", "sleeper", &plugin{})
		s := r.pod()
		p.mu.Lock()
		p.hang = 2 * time.Minute
		p.mu.Unlock()
		begin := time.Now()
		c := s.start(busybox("main", "sleep 1000"))
		if took := time.Since(begin); took < 3900*time.Millisecond || took > timeouts.For(time.Minute) {
			r.Errorf("a plugin that hangs held a container up for %v", took)
		}
		select {
		case <-p.dropped:
		case <-time.After(timeouts.For(time.Minute)):
			r.Error("the plugin is not dropped")
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		if n := len(p.told()); n != 2 {
			r.Errorf("it was told %q", p.told())
		}
	})
}
