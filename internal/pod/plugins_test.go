package pod

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// asked are plugins that answer as the test says.
type asked struct {
	Plugins
	change []Change
	refuse error
}

func (a *asked) Hold() func() { return func() {} }
func (a *asked) Tell(context.Context, Moment, *sandbox.Record, *sandbox.Container) ([]Change, error) {
	return nil, nil
}
func (a *asked) Adjust(context.Context, *sandbox.Record, *sandbox.Container, *specs.Spec) ([]Change, error) {
	return a.change, a.refuse
}
func (a *asked) Limits(
	_ context.Context, _ *sandbox.Record, _ *sandbox.Container, want *runtimeapi.LinuxContainerResources,
) (*runtimeapi.LinuxContainerResources, []Change, error) {
	return want, a.change, a.refuse
}

// groups are cgroups that note the limits that they are given.
type groups struct {
	Cgroups
	set  []*specs.LinuxResources
	fail error
	back int // how often something was put back
}

func (g *groups) SetLimits(_ context.Context, _ string, _, want *specs.LinuxResources) (func() error, error) {
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
