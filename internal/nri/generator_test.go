package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/test/timeouts"
)

// adjuster is a plugin that wants each container changed in the same way.
type adjuster struct{ want *api.ContainerAdjustment }

// CreateContainer says what it wants.
func (a *adjuster) CreateContainer(
	context.Context, *api.PodSandbox, *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return a.want, nil, nil
}

// openAdjuster opens NRI with a plugin that wants this of each container.
func openAdjuster(t *testing.T, want *api.ContainerAdjustment, edit func(*Config)) *Plugins {
	t.Helper()
	p := openPlugins(t, edit)
	s, err := stub.New(&adjuster{want}, stub.WithPluginIdx("10"), stub.WithPluginName("adjuster"),
		stub.WithSocketPath(p.cfg.Socket))
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	eventually(t, "the plugin takes part", func() bool { return p.Status().Plugins == 1 })
	return p
}

// TestPluginSetsOneOfManyVariables has a container with about as many variables as a plugin can be told of. The library
// sets each of them anew: looking through all of them for each would take minutes, in which nothing is made on the node
// as soon as another plugin wants to join.
func TestPluginSetsOneOfManyVariables(t *testing.T) {
	const n = 300_000
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("1", "plugin")
	adjust.AddEnv("new", "plugin")
	p := openAdjuster(t, adjust, func(cfg *Config) { cfg.RequestTimeout = timeouts.For(time.Minute) })
	r, c := life(t)
	sp := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	for i := range n {
		sp.Process.Env = append(sp.Process.Env, fmt.Sprintf("%x=", i))
	}
	want := append(slices.Clone(sp.Process.Env), "new=plugin")
	want[1] = "1=plugin"

	ended := make(chan error, 1)
	go func() {
		_, err := p.Adjust(context.Background(), r, c, sp)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil || !slices.Equal(sp.Process.Env, want) {
			t.Errorf("%v: %d variables, wanted %d", err, len(sp.Process.Env), len(want))
		}
	case <-time.After(timeouts.For(time.Minute)):
		t.Fatalf("the spec with %d variables is not adjusted after a minute", n)
	}
}

// TestGeneratorSetsVariables sets variables that are there, that are there twice, and that are new.
func TestGeneratorSetsVariables(t *testing.T) {
	sp := &specs.Spec{Process: &specs.Process{Env: []string{"A=1", "AB=2", "A=3", "C"}}}
	g := &generator{sp: sp}
	g.AddProcessEnv("A", "4")
	g.AddProcessEnv("B", "5=6")
	if want := []string{"A=4", "AB=2", "C", "B=5=6"}; !slices.Equal(sp.Process.Env, want) {
		t.Errorf("%q, wanted %q", sp.Process.Env, want)
	}
	g.ClearProcessEnv()
	g.AddProcessEnv("B", "7")
	if want := []string{"B=7"}; !slices.Equal(sp.Process.Env, want) {
		t.Errorf("cleared: %q, wanted %q", sp.Process.Env, want)
	}
}

// TestAdjustEndsWithItsContext ends the creation of a container while a device that a plugin adds is looked up: the
// container is not made after all.
func TestAdjustEndsWithItsContext(t *testing.T) {
	want := &api.ContainerAdjustment{}
	want.AddCDIDevice(&api.CDIDevice{Name: "v.com/c=one"})
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped, looked := errors.New("the pod is stopped"), 0
	p := openAdjuster(t, want, func(cfg *Config) {
		cfg.Devices = func(context.Context, *specs.Spec, []string) error {
			looked++
			cancel(stopped)
			return nil
		}
	})
	r, c := life(t)
	for range 2 { // the second is asked for when it has ended already
		sp := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
		_, err := p.Adjust(ctx, r, c, sp)
		if !errors.Is(err, stopped) && !errors.Is(err, context.Canceled) { // the latter by the library
			t.Errorf("its error: %v", err)
		}
	}
	if looked != 1 {
		t.Errorf("devices were looked up %d times", looked)
	}
}
