package pod

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"

	"berth/internal/network"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// leftovers are attachments and cgroups of pods, some of which cannot be removed.
type leftovers struct {
	attached, grouped map[string]bool
	stuck             string
	swept             func(id string) bool
}

func (l *leftovers) Sweep(
	_ context.Context, live func(string) bool, _ func(string) (runtime.Handler, error),
) error {
	l.swept = live
	return errors.New("a monitor that cannot be ended")
}

func (l *leftovers) Detach(_ context.Context, p network.Pod) error {
	if p.ID == l.stuck {
		return errors.New("stuck")
	}
	delete(l.attached, p.ID)
	return nil
}

func (l *leftovers) Attachments() ([]string, error) { return slices.Sorted(maps.Keys(l.attached)), nil }

func (l *leftovers) RemovePod(_ context.Context, id string) error {
	delete(l.grouped, id)
	return nil
}

func (l *leftovers) Pods(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(l.grouped)), nil
}

// TestSweepTakesWhatNobodyOwns sweeps without pods: what has an owner stays, and what cannot be removed keeps nothing
// else from it.
func TestSweepTakesWhatNobodyOwns(t *testing.T) {
	owned, lost, stuck := string(sandbox.NewID()), string(sandbox.NewID()), string(sandbox.NewID())
	dir := t.TempDir()
	layout := &sandbox.Layout{Root: dir + "/r", State: dir + "/s", Instance: "berth-test", NetNS: dir + "/netns"}
	for _, id := range []string{owned, lost} {
		if err := os.MkdirAll(layout.Run(sandbox.ID(id)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(layout.NetNS, 0o700); err != nil {
		t.Fatal(err)
	}
	all := func() map[string]bool { return map[string]bool{owned: true, lost: true, stuck: true} }
	l := &leftovers{attached: all(), grouped: all(), stuck: stuck}
	l.grouped["a-slice-of-somebody"] = true
	s := sweeper{
		layout: layout, owned: func(id string) bool { return id == owned },
		runtime: l, network: l, cgroups: l, log: slog.New(slog.DiscardHandler),
	}
	s.sweep(t.Context())
	if want := map[string]bool{owned: true, stuck: true}; !maps.Equal(l.attached, want) {
		t.Errorf("attached are %v, want %v", l.attached, want)
	}
	if want := map[string]bool{owned: true, "a-slice-of-somebody": true}; !maps.Equal(l.grouped, want) {
		t.Errorf("groups are %v, want %v", l.grouped, want)
	}
	if l.swept == nil || !l.swept(owned) || l.swept(lost) {
		t.Error("the runtime was not told who is owned")
	}
	for id, want := range map[string]bool{owned: true, lost: false} {
		if there(layout.Run(sandbox.ID(id))) != want {
			t.Errorf("the run directory of %s: %v", id, !want)
		}
	}
}
