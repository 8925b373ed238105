package pod

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// leftovers are attachments and cgroups of pods, some of which cannot be removed.
type leftovers struct {
	grouped map[string]bool
	swept   func(id string) bool
	detach  func(p network.Pod) error // nil for one that succeeds
	listed  func()                    // called when the attachments are listed; may be nil

	mu       sync.Mutex // guards attached
	attached map[string]bool
}

func (l *leftovers) Sweep(
	_ context.Context, live func(string) bool, _ func(string) (runtime.Handler, error),
) error {
	l.swept = live
	return errors.New("a monitor that cannot be ended")
}

func (l *leftovers) Detach(_ context.Context, p network.Pod) error {
	if l.detach != nil {
		if err := l.detach(p); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.attached, p.ID)
	return nil
}

func (l *leftovers) Attachments() ([]string, error) {
	if l.listed != nil {
		l.listed()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.attached)), nil
}

func (l *leftovers) RemovePod(_ context.Context, id string) error {
	delete(l.grouped, id)
	return nil
}

func (l *leftovers) Pods(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(l.grouped)), nil
}

// sweeperOf sweeps what is left, of which an id is owned, until the test ends.
func sweeperOf(t *testing.T, l *leftovers, owned string) *sweeper {
	dir := t.TempDir()
	w := &worker{pauses: op.Backoff{First: time.Millisecond, Max: time.Millisecond}}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	t.Cleanup(w.close)
	s := &sweeper{
		layout: &sandbox.Layout{Root: dir + "/r", State: dir + "/s", Instance: "berth-test", NetNS: dir + "/netns"},
		owned:  func(id string) bool { return id == owned },
		worker: w, orphans: &orphans{}, runtime: l, network: l, cgroups: l, log: slog.New(slog.DiscardHandler),
	}
	if err := os.Mkdir(s.layout.NetNS, 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSweepTakesWhatNobodyOwns sweeps without pods: what has an owner stays, and what cannot be removed keeps nothing
// else from it.
func TestSweepTakesWhatNobodyOwns(t *testing.T) {
	owned, lost, stuck := string(sandbox.NewID()), string(sandbox.NewID()), string(sandbox.NewID())
	all := func() map[string]bool { return map[string]bool{owned: true, lost: true, stuck: true} }
	l := &leftovers{attached: all(), grouped: all(), detach: func(p network.Pod) error {
		if p.ID == stuck {
			return errors.New("stuck")
		}
		return nil
	}}
	l.grouped["a-slice-of-somebody"] = true
	s := sweeperOf(t, l, owned)
	layout := s.layout
	for _, id := range []string{owned, lost} {
		if err := os.MkdirAll(layout.Run(sandbox.ID(id)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.sweep(t.Context())
	wait(t, "the attachments that can be undone", func() bool {
		left, _ := l.Attachments()
		return slices.Equal(left, slices.Sorted(slices.Values([]string{owned, stuck})))
	})
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

// TestSweepSaysAtOnceWhatIsLeft has the monitors of orphans not end: that is logged before the next kind is swept,
// which may take long.
func TestSweepSaysAtOnceWhatIsLeft(t *testing.T) {
	l, log := &leftovers{}, &bytes.Buffer{}
	s := sweeperOf(t, l, "")
	s.log = slog.New(slog.NewTextHandler(log, nil))
	var said string
	l.listed = func() { said = log.String() }
	s.sweep(t.Context())
	if !strings.Contains(said, "a monitor that cannot be ended") {
		t.Errorf("logged was %q", said)
	}
}

// TestSweepDetachesAgain has the plugins of pods without a record not be ready yet when the daemon starts. Their DEL is
// tried again, with the namespaces, which go afterwards; one that hangs holds up nothing.
func TestSweepDetachesAgain(t *testing.T) {
	slow, hung, gone := string(sandbox.NewID()), string(sandbox.NewID()), string(sandbox.NewID())
	release := make(chan struct{})
	var tries atomic.Int32
	l := &leftovers{attached: map[string]bool{slow: true, hung: true}}
	s := sweeperOf(t, l, "")
	pin := func(id string) string { return s.layout.NetNSPin(sandbox.ID(id)) }
	l.detach = func(p network.Pod) error {
		switch {
		case p.NetNS != pin(p.ID) || !there(p.NetNS):
			t.Errorf("the namespace of %s is gone", p.ID)
		case p.ID == hung:
			<-release
		case tries.Add(1) < 3:
			return errors.New("the agent is not up")
		}
		return nil
	}
	for _, id := range []string{slow, hung, gone} {
		if err := os.WriteFile(pin(id), nil, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	s.sweep(t.Context()) // while one hangs
	if there(pin(gone)) {
		t.Error("the namespace of a pod without an attachment is left")
	}
	wait(t, "the third try", func() bool { return !there(pin(slow)) })
	if left, _ := l.Attachments(); !slices.Equal(left, []string{hung}) || tries.Load() != 3 || !there(pin(hung)) {
		t.Errorf("left %v after %d tries", left, tries.Load())
	}
	close(release)
	wait(t, "the one that hung", func() bool { return !there(pin(hung)) })
}

// orphaned is a network with an attachment of a pod without a record.
type orphaned struct {
	*wires
	pod string
}

func (o orphaned) Attachments() ([]string, error) { return []string{o.pod}, nil }

// TestOrphansAreProblems has a pod without a record be detached in vain, for another reason later. It is a problem, in
// the words of the last try, since the first, until it is detached.
func TestOrphansAreProblems(t *testing.T) {
	b, id := open(t), sandbox.NewID()
	b.cfg.Network = orphaned{b.net, string(id)}
	b.net.failDel(errors.New("the plugin is gone: remove /the/file"))
	began := time.Now()
	b.reopen(t)
	says := func(reason string) (p sandbox.Problem) {
		t.Helper()
		wait(t, reason, func() bool {
			all := b.Problems()
			if len(all) == 1 {
				p = all[0]
			}
			return strings.HasSuffix(p.What, reason)
		})
		return p
	}
	first := says(": remove /the/file")
	b.net.failDel(errors.New("the plugin says no"))
	last := says("says no")
	if last.Pod != id || !strings.Contains(last.What, "no record") || !last.Since.Equal(first.Since) ||
		last.Since.Before(began) {
		t.Errorf("%+v, before %+v", last, first)
	}
	b.net.failDel(nil)
	wait(t, "its end", func() bool { return len(b.Problems()) == 0 })
}
