package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPluginJoinsWhileContainersAreMade loses none of them: each is either among what the plugin is shown, or it is
// asked about it.
func TestPluginJoinsWhileContainersAreMade(t *testing.T) {
	nriNode(t, func(r rig) {
		s := r.pod()
		s.start(busybox("before", "sleep 1000"))
		var making sync.WaitGroup
		p := r.join("10", "late", &plugin{joining: func() {
			for i := range 3 {
				making.Go(func() {
					if _, err := r.n.Runtime.CreateContainer(ctx(), s.id, busybox(fmt.Sprint("during", i), "true"),
						s.config); err != nil {
						r.Error(err)
					}
				})
			}
			time.Sleep(400 * time.Millisecond) // of the time that a plugin has
		}})
		making.Wait()
		s.start(busybox("after", "sleep 1000"))
		for _, name := range []string{"before", "during0", "during1", "during2", "after"} {
			known := slices.ContainsFunc(p.known, func(k string) bool { return strings.HasPrefix(k, name+" ") })
			if asked := slices.Contains(p.told(), "create "+name); known == asked {
				r.Errorf("%s: shown %v, asked about %v", name, known, asked)
			}
		}
	})
}

// TestPluginJoinsWhileContainersEnd wants a plugin told of what ends and of what is changed while it is shown the node,
// and nobody to wait for it whose end that is.
func TestPluginJoinsWhileContainersEnd(t *testing.T) {
	nriNode(t, func(r rig) {
		s, gone := r.pod(), r.pod()
		dying := s.start(busybox("dying", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"))
		dying.logged("up")
		resized := s.start(busybox("resized", "sleep 1000"))
		gone.start(busybox("lost", "sleep 1000"))
		change := make(chan error, 1)
		p := r.join("10", "late", &plugin{joining: func() {
			go func() { change <- resized.limit(&v1.LinuxContainerResources{CpuShares: 300}) }()
			for _, err := range []error{
				r.n.Runtime.StopContainer(ctx(), dying.cid, seconds(60)), r.n.Runtime.StopPodSandbox(ctx(), gone.id),
				r.n.Runtime.RemovePodSandbox(ctx(), gone.id),
			} {
				if err != nil {
					r.Error(err)
				}
			}
		}})
		r.ok(<-change)
		for _, want := range []string{
			"stop dying 3", "update resized", "updated resized", "stop lost 137", "stop pod", "remove lost", "remove pod",
		} {
			r.eventually("it is told "+want, func() bool { return slices.Contains(p.told(), want) })
		}
	})
}

// TestPluginsLimitProcesses has a plugin limit by itself what CRI has no word for, and refuses what can only be had
// from the beginning.
func TestPluginsLimitProcesses(t *testing.T) {
	nriNode(t, func(r rig) {
		p := r.join("10", "limiter", &plugin{})
		s := r.pod()
		c, other := s.start(busybox("main", "sleep 1000")), s.start(busybox("other", "sleep 1000"))
		forks := "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo all"
		update := func(id string, change func(u *api.ContainerUpdate)) *api.ContainerUpdate {
			u := &api.ContainerUpdate{}
			u.SetContainerId(id)
			change(u)
			return u
		}
		few := func(u *api.ContainerUpdate) {
			u.Linux = &api.LinuxContainerUpdate{Resources: &api.LinuxResources{Pids: &api.LinuxPids{Limit: 5}}}
		}
		if failed, err := p.UpdateContainers([]*api.ContainerUpdate{update(other.cid, few)}); err != nil || len(failed) > 0 {
			r.Errorf("an update by itself: failed %v, %v", failed, err)
		}
		if out, _, _ := r.n.Runtime.ExecSync(ctx(), other.cid, []string{"sh", "-c", forks}, 10*time.Second); strings.Contains(
			string(out), "all") {
			r.Error("it has as many processes as it likes")
		}

		fast := func(u *api.ContainerUpdate) { u.SetLinuxBlockIOClass("fast"); u.SetLinuxCPUShares(444) }
		p.limit = func(ctr *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
			return []*api.ContainerUpdate{update(ctr.Id, fast)}, nil
		}
		r.wantCode(c.limit(&v1.LinuxContainerResources{CpuShares: 333}), codes.FailedPrecondition, "block I/O", "fast")
		if failed, err := p.UpdateContainers([]*api.ContainerUpdate{update(other.cid, fast)}); err != nil ||
			len(failed) != 1 {
			r.Errorf("what cannot be done: failed %v, %v", failed, err)
		}
		if got := other.status().GetResources().GetLinux().GetCpuShares(); got == 444 {
			r.Error("half of an update was done")
		}
	})
}

// installedVariable, in its environment, makes this program a plugin that notes in the file of that name what it is
// told. With the path of a socket in joinsVariable it connects there and stops itself when it is shown what there is.
const (
	installedVariable = "BERTH_TEST_PLUGIN"
	joinsVariable     = "BERTH_TEST_PLUGIN_JOINS"
)

// TestInstalledPlugins has a daemon start the plugins that are installed, with their configuration, and end them.
func TestInstalledPlugins(t *testing.T) {
	nriNode(t, func(r rig) {
		self, err := os.Executable()
		r.ok(err)
		notes, dir, conf := r.n.Dir+"/notes", r.n.Dir+"/nri.d", r.n.Dir+"/nri.conf"
		script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s\n", installedVariable, notes, self)
		r.ok(errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(conf, 0o755),
			os.WriteFile(dir+"/10-installed", []byte(script), 0o755),
			os.WriteFile(conf+"/10-installed.conf", []byte("blue"), 0o644),
			os.WriteFile(dir+"/README", nil, 0o644))) // not a program
		s := r.pod()
		s.start(busybox("before", "sleep 1000"))
		r.ok(r.n.Restart())
		c := s.start(busybox("main", "echo $FROM_PLUGIN; sleep 1000"))
		c.logged("blue")
		var pid int
		told := func() string {
			data, _ := os.ReadFile(notes)
			first, rest, _ := strings.Cut(string(data), "\n")
			_, _ = fmt.Sscanf(first, "pid %d", &pid)
			return rest
		}
		r.wantText("what it was told", told(), "found before\ncreate main\n")
		alive := func() bool { return unix.Kill(pid, 0) == nil }
		if !alive() {
			r.Errorf("its process %d is gone", pid)
		}
		r.ok(r.n.Restart())
		if _, err := r.n.Runtime.CreateContainer(ctx(), s.id, busybox("next", "true"), s.config); err != nil {
			r.Error(err)
		}
		if got := strings.Count(told(), "create next\n"); got != 1 {
			r.Errorf("%d plugins were asked about a container", got)
		}
		r.eventually("the first one has ended with its daemon", func() bool { return !alive() })
	})
}

// TestPluginsJoinLargePods has a plugin join while the containers of one pod are more than one message of NRI holds,
// and a daemon start with a plugin that is installed and is shown the same.
func TestPluginsJoinLargePods(t *testing.T) {
	t.Parallel() // it has nodes of its own, and mostly waits
	nriNode(t, func(r rig) {
		large := func(c *v1.ContainerConfig) {
			for i := range 8 {
				c.Envs = append(c.Envs,
					&v1.KeyValue{Key: fmt.Sprint("LARGE_", i), Value: []byte(strings.Repeat("x", 120<<10))})
			}
		}
		s := r.pod()
		for i := range 10 {
			s.start(busybox(fmt.Sprint("c", i), "sleep 1000", large))
		}
		if late := r.join("10", "late", &plugin{}); len(late.known) != 10 {
			r.Errorf("it is shown %d containers", len(late.known))
		}
		self, err := os.Executable()
		r.ok(err)
		notes, dir := r.n.Dir+"/notes", r.n.Dir+"/nri.d"
		script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s\n", installedVariable, notes, self)
		r.ok(errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/10-installed", []byte(script), 0o755), r.n.Restart()))
		told, err := os.ReadFile(notes)
		if got := strings.Count(string(told), "found "); err != nil || got != 10 {
			r.Errorf("the installed plugin is shown %d containers, %v", got, err)
		}
	})
}

// installed is the plugin that this program is then.
type installed struct {
	notes  string
	joins  string
	colour string
}

func runInstalled(notes string) int {
	p := &installed{notes: notes, joins: os.Getenv(joinsVariable)}
	p.note(fmt.Sprint("pid ", os.Getpid()))
	var options []stub.Option
	if p.joins != "" {
		options = []stub.Option{stub.WithSocketPath(p.joins), stub.WithPluginIdx("50"), stub.WithPluginName("stops")}
	}
	s, err := stub.New(p, options...)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(notes), err)
		return 1
	}
	return 0
}

func (p *installed) note(text string) {
	f, err := os.OpenFile(p.notes, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(text + "\n")
}

func (p *installed) Configure(_ context.Context, config, _, _ string) (stub.EventMask, error) {
	p.colour = config
	return 0, nil
}

func (p *installed) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) (
	[]*api.ContainerUpdate, error) {
	for _, c := range containers {
		p.note("found " + c.Name)
	}
	if p.joins != "" {
		p.note("stops")
		err := unix.Kill(os.Getpid(), unix.SIGSTOP)
		time.Sleep(time.Second) // another thread may take the signal, a moment later; the answer comes after it
		return nil, err
	}
	return nil, nil
}

func (p *installed) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (
	*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("create " + c.Name)
	a := &api.ContainerAdjustment{}
	a.AddEnv("FROM_PLUGIN", p.colour)
	return a, nil, nil
}
