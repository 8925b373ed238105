package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/cgroup"
	direct "berth/internal/cgroup/limits"
	"berth/internal/pod"
	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// witness is a plugin that notes what it is told.
type witness struct {
	stub    stub.Stub
	joining func() []*api.ContainerUpdate // called while it is shown what there is
	freed   []*api.ContainerUpdate        // what it wants done to others when a container has ended
	gone    chan struct{}                 // closed when it was disconnected; nil tells nobody

	mu    sync.Mutex // guards notes
	notes []string
}

func (w *witness) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

func (w *witness) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.notes)
}

func (w *witness) Synchronize(
	context.Context, []*api.PodSandbox, []*api.Container,
) ([]*api.ContainerUpdate, error) {
	w.note("shown")
	if w.joining == nil {
		return nil, nil
	}
	return w.joining(), nil
}
func (w *witness) RunPodSandbox(_ context.Context, s *api.PodSandbox) error {
	w.note("run %s", s.GetName())
	return nil
}
func (w *witness) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	w.note("limited %s to %d", c.GetName(), c.GetLinux().GetResources().GetCpu().GetShares().GetValue())
	return nil
}
func (w *witness) StopContainer(
	_ context.Context, _ *api.PodSandbox, c *api.Container,
) ([]*api.ContainerUpdate, error) {
	w.note("stop %s %d", c.GetName(), c.GetExitCode())
	return w.freed, nil
}
func (w *witness) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	w.note("stop %s", s.GetName())
	return nil
}
func (w *witness) RemovePodSandbox(_ context.Context, s *api.PodSandbox) error {
	w.note("remove %s", s.GetName())
	return nil
}

// openPlugins opens NRI on a node without pods.
func openPlugins(t *testing.T, edit func(*Config)) *Plugins {
	t.Helper()
	dir := t.TempDir()
	cgroups := direct.Direct{Direct: cgroup.Direct{Instance: "berth-test"}}
	log := slog.New(slog.DiscardHandler)
	pods, err := pod.Open(pod.Config{
		Layout: sandbox.Layout{Root: dir + "/r", State: dir + "/s", Instance: "berth-test", NetNS: dir + "/netns"},
		Boot:   "boot", Log: log, Dirty: func(string) {}, Cgroups: cgroups, Bundle: bundle.Builder{Cgroups: cgroups},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Name: "berth", Release: "test", Instance: "test", Socket: filepath.Join(dir, "nri.sock"), PluginDir: dir + "/plugins",
		ConfigDir: dir + "/conf.d", RegistrationTimeout: timeouts.For(5 * time.Second),
		RequestTimeout: timeouts.For(5 * time.Second), SynchronizationTimeout: timeouts.For(20 * time.Second), Log: log,
	}
	if edit != nil {
		edit(&cfg)
	}
	p := New(cfg)
	if err := p.Start(pods); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		pods.Close()
	})
	return p
}

// takePart connects a plugin, and returns when it takes part.
func takePart(t *testing.T, p *Plugins, index, name string, w *witness) {
	t.Helper()
	before := p.Status().Plugins
	connect(t, p, index, name, w)
	eventually(t, "the plugin takes part", func() bool { return p.Status().Plugins == before+1 })
}

func connect(t *testing.T, p *Plugins, index, name string, w *witness) {
	t.Helper()
	var err error
	w.stub, err = stub.New(w, stub.WithPluginIdx(index), stub.WithPluginName(name), stub.WithSocketPath(p.cfg.Socket),
		stub.WithOnClose(func() {
			if w.gone != nil {
				close(w.gone)
			}
		}))
	if err == nil {
		err = w.stub.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stub.Stop)
}

// holdOff keeps plugins from joining.
func holdOff(t *testing.T, p *Plugins) (release func()) {
	release, err := p.Hold(context.Background())
	if err != nil {
		t.Error(err)
	}
	return release
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(timeouts.For(time.Minute)); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%s: not yet", what)
		}
	}
}

// life is a pod with a container that has ended.
func life(t *testing.T) (*sandbox.Record, *sandbox.Container) {
	t.Helper()
	cfg, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "n", Uid: "u"},
	})
	if err != nil {
		t.Fatal(err)
	}
	meta := &runtimeapi.ContainerMetadata{Name: "main"}
	m, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{Metadata: meta})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sandbox.NewResources(&runtimeapi.LinuxContainerResources{CpuShares: 77})
	if err != nil {
		t.Fatal(err)
	}
	c := &sandbox.Container{ID: sandbox.NewID(), State: sandbox.Exited, Config: m, ExitCode: 7, Resources: res}
	r := &sandbox.Record{ID: sandbox.NewID(), State: sandbox.Ready, Config: cfg}
	r.Containers = append(r.Containers, c)
	return r, c
}

// TestNothingIsMissedWhileAPluginJoins wants a plugin told, in their order, of the changes and ends that come while it
// is shown the node, nobody to wait for it whose end that is, and what begins to wait for the telling.
func TestNothingIsMissedWhileAPluginJoins(t *testing.T) {
	for name, others := range map[string]int{"the first plugin": 0, "another plugin": 1} {
		t.Run(name, func(t *testing.T) {
			p := openPlugins(t, nil)
			var all []*witness
			for range others {
				w := &witness{}
				takePart(t, p, "10", "first", w)
				all = append(all, w)
			}
			r, c := life(t)
			begun := make(chan error, 1)
			late := &witness{joining: func() []*api.ContainerUpdate {
				go func() {
					defer holdOff(t, p)()
					_, err := p.Tell(context.Background(), pod.PodRun, r, nil)
					begun <- err
				}()
				for _, m := range []pod.Moment{pod.ContainerLimited, pod.ContainerStop, pod.PodStop, pod.PodRemove} {
					var ctr *sandbox.Container
					if m == pod.ContainerLimited || m == pod.ContainerStop {
						ctr = c
					}
					if _, err := p.Tell(context.Background(), m, r, ctr); err != nil { // it returns before this answers
						t.Error(err)
					}
				}
				return nil
			}}
			takePart(t, p, "20", "late", late)
			if err := <-begun; err != nil {
				t.Error(err)
			}
			want := []string{"shown", "limited main to 77", "stop main 7", "stop pod", "remove pod", "run pod"}
			for _, w := range append(all, late) {
				if got := w.told(); !slices.Equal(got, want) {
					t.Errorf("told %q, wanted %q", got, want)
				}
			}
			if p.joining.isOpen() {
				t.Error("it goes on to keep what happens")
			}
			if _, err := p.Tell(t.Context(), pod.ContainerStop, r, c); err != nil {
				t.Error(err)
			}
			if got := late.told(); !slices.Equal(got, append(want, "stop main 7")) {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
}

// TestWhatWasKeptIsToldWithoutAnother wants it told also where nothing else comes, and where the plugin is refused.
func TestWhatWasKeptIsToldWithoutAnother(t *testing.T) {
	p := openPlugins(t, nil)
	r, c := life(t)
	first, late := &witness{}, &witness{}
	takePart(t, p, "10", "first", first)
	end := func() {
		if _, err := p.Tell(context.Background(), pod.ContainerStop, r, c); err != nil {
			t.Error(err)
		}
	}
	late.joining = func() []*api.ContainerUpdate {
		end()
		late.stub.Stop() // it is gone before it has answered
		return nil
	}
	connect(t, p, "20", "late", late)
	eventually(t, "the one that takes part is told", func() bool { return slices.Contains(first.told(), "stop main 7") })
	eventually(t, "nothing is kept any more", func() bool { return !p.joining.isOpen() })
	if got := p.Status().Plugins; got != 1 {
		t.Errorf("%d plugins", got)
	}
}

// TestEndedQuestionsWaitForNoPlugin wants one who is about to ask, and whose operation ends, not to wait for a plugin
// that joins, and nothing to be held for it afterwards.
func TestEndedQuestionsWaitForNoPlugin(t *testing.T) {
	p := openPlugins(t, nil)
	shown, answer := make(chan struct{}), make(chan struct{})
	connect(t, p, "10", "slow", &witness{joining: func() []*api.ContainerUpdate {
		close(shown)
		<-answer
		return nil
	}})
	<-shown
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("it is stopped")
	ended := make(chan error, 1)
	go func() {
		_, err := p.Hold(ctx)
		ended <- err
	}()
	cancel(stopped)
	select {
	case err := <-ended:
		if !errors.Is(err, stopped) {
			t.Errorf("its error: %v", err)
		}
	case <-time.After(timeouts.For(10 * time.Second)):
		t.Error("it waits for the plugin")
	}
	close(answer)
	eventually(t, "the plugin takes part", func() bool { return p.Status().Plugins == 1 })
	takePart(t, p, "20", "next", &witness{})
	holdOff(t, p)()
}
