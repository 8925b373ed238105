package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// take reads the next events and checks their kinds.
func take(t *testing.T, w *Watcher, want ...string) []Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(10*time.Second))
	defer cancel()
	var got []Event
	var words []string
	for range want {
		e, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("after %q, wanted %q: %v", words, want, err)
		}
		what := "container"
		if e.ID == e.Record.ID {
			what = "pod"
		}
		got, words = append(got, e), append(words, fmt.Sprintf("%s %d", what, e.Kind))
	}
	if !slices.Equal(words, want) {
		t.Fatalf("got %q, wanted %q", words, want)
	}
	return got
}

func none(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if e, err := w.Next(ctx); err == nil {
		t.Fatalf("one event too many: %d of %s", e.Kind, e.ID)
	}
}

// live makes a pod with a started container.
func (b *bench) live(t *testing.T) (pod, ctr sandbox.ID) {
	t.Helper()
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	p := b.Catalog.index.Load().pods[pod]
	// The rest of a container's making needs a real root; its record is what is looked at here.
	ctr = sandbox.NewID()
	m, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	err = p.update(t.Context(), "test", func(r *sandbox.Record) error {
		r.Containers = append(r.Containers, &sandbox.Container{ID: ctr, State: sandbox.Creating, Config: m})
		p.containers.put(newContainer(p, ctr))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Catalog.reindex(func(x *index) { x.containers[ctr] = p })
	b.drv.mu.Lock()
	b.drv.live[string(ctr)] = string(pod)
	b.drv.mu.Unlock()
	err = p.update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error { return c.MoveTo(sandbox.Created) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), ctr); err != nil {
		t.Fatal(err)
	}
	return pod, ctr
}

func TestEventsTellOfAWholeLife(t *testing.T) {
	b := open(t)
	w, other := b.Feed.Watch(), b.Feed.Watch()
	defer w.Close()
	pod, ctr := b.live(t)
	made := take(t, w, "pod 0", "pod 1", "container 0", "container 1")
	if r := made[0].Record; r.State != sandbox.Ready || len(r.Containers) != 0 || len(r.IPs) != 1 {
		t.Errorf("the pod's own event tells of %+v", r)
	}
	if c := made[3].Record.Container(ctr); c.State != sandbox.Running {
		t.Errorf("the start tells of a container that is %s", c.State)
	}
	other.Close()
	b.drv.end(string(pod), string(ctr), runtime.Exit{Code: 3})
	if c := take(t, w, "container 2")[0].Record.Container(ctr); c.State != sandbox.Exited || c.ExitCode != 3 {
		t.Errorf("the stop tells of %+v", c)
	}
	if err := b.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	gone := take(t, w, "pod 2", "container 3", "pod 3")
	if len(gone[2].Record.Containers) != 0 || gone[2].ID != pod {
		t.Errorf("the last event tells of %+v", gone[2])
	}
	none(t, w)
	take(t, other, "pod 0", "pod 1", "container 0", "container 1")
	none(t, other)
	if n := b.Feed.EventCounts(); n != (EventCounts{Watchers: 1}) {
		t.Errorf("counts: %+v", n)
	}
}

// A kubelet drops all that it knows of a pod's uid when a pod is deleted: one that it never saw must not be.
func TestPodThatNeverWasHasNoEvents(t *testing.T) {
	b := open(t)
	w := b.Feed.Watch()
	defer w.Close()
	b.net.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		wait(t, "an ADD", func() bool { adds, _ := b.net.state(); return adds == 1 })
		for _, p := range b.Catalog.index.Load().pods {
			if err := b.Remove(t.Context(), p.id); err != nil {
				t.Error(err)
			}
		}
		cancel()
	}()
	if _, err := b.Run(ctx, podConfig("a"), ""); err == nil {
		t.Error("the pod was made")
	}
	<-removed
	wait(t, "the end of the undo", func() bool { return len(b.Catalog.index.Load().pods) == 0 })
	none(t, w)
}

func TestContainerThatEndedBeforeItsStartWasSeen(t *testing.T) {
	was := &sandbox.Container{State: sandbox.Starting}
	for reason, want := range map[string][]EventKind{
		sandbox.ReasonCompleted: {EventStarted, EventStopped}, sandbox.ReasonCannotRun: {EventStopped},
	} {
		if got := became(was, &sandbox.Container{State: sandbox.Exited, Reason: reason}); !slices.Equal(got, want) {
			t.Errorf("%s: %v, wanted %v", reason, got, want)
		}
	}
}

func TestWatcherThatDoesNotReadIsDropped(t *testing.T) {
	b := open(t)
	slow, quick := b.Feed.Watch(), b.Feed.Watch()
	defer slow.Close()
	defer quick.Close()
	for i := range limit.UnreadEvents.Limit + 1 {
		b.Feed.publish(Event{At: time.Unix(int64(i), 0)})
		if e, err := quick.Next(t.Context()); err != nil || e.At.Unix() != int64(i) {
			t.Fatalf("event %d: %v, %v", i, e, err)
		}
	}
	_, err := slow.Next(t.Context())
	if !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("got %v", err)
	}
	if slow.unread != nil {
		t.Error("what nobody reads is kept")
	}
	if n := b.Feed.EventCounts(); n != (EventCounts{Watchers: 1, Dropped: 1}) {
		t.Errorf("counts: %+v", n)
	}
	if n := EventTotals(b.Pods); n.Lost != int(limit.UnreadEvents.Limit)+1 || len(n.Sent) != len(b.Feed.sent) {
		t.Errorf("totals: %+v", n)
	}
}

// Of the events of one change those behind the one that found the queue full are lost, too.
func TestEventsOfOneChangeAreLostTogether(t *testing.T) {
	b := open(t)
	slow := b.Feed.Watch()
	defer slow.Close()
	for range limit.UnreadEvents.Limit {
		b.Feed.publish(Event{})
	}
	b.Feed.publish(Event{}, Event{}, Event{})
	if n := EventTotals(b.Pods).Lost; n != int(limit.UnreadEvents.Limit)+3 {
		t.Errorf("%d are lost, wanted %d", n, limit.UnreadEvents.Limit+3)
	}
}

// A container that the kernel killed for memory counts once, and no other does.
func TestOOMKillsAreCounted(t *testing.T) {
	for want, e := range []runtime.Exit{{Code: 137}, {Code: 137, OOMKilled: true}} {
		b := open(t)
		pod, ctr := b.live(t)
		b.drv.end(string(pod), string(ctr), e)
		wait(t, "the exit", func() bool {
			r, err := b.Catalog.Get(pod)
			return err == nil && r.Container(ctr).State == sandbox.Exited
		})
		b.Exited(string(pod), string(ctr), e) // told again, as by a monitor that was joined anew
		if n := OOMKills(b.Pods); n != want {
			t.Errorf("%d containers were killed for memory, wanted %d", n, want)
		}
	}
}

// TestKilledOnDemand has clients kill a container of which the kernel has killed a process for memory before, and which
// had gone on: none of these ends is one for want of memory.
func TestKilledOnDemand(t *testing.T) {
	for name, kill := range map[string]func(*bench, sandbox.ID, sandbox.ID) error{
		"by a stop":    func(b *bench, _, ctr sandbox.ID) error { return b.StopContainer(t.Context(), ctr, 0) },
		"by a signal":  func(b *bench, _, ctr sandbox.ID) error { return Signal(t.Context(), b.Pods, ctr, "KILL") },
		"with its pod": func(b *bench, pod, _ sandbox.ID) error { return b.Stop(t.Context(), pod) },
		"by its stop signal": func(b *bench, pod, ctr sandbox.ID) error {
			err := b.Catalog.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
				return r.Edit(ctr, func(c *sandbox.Container) error {
					c.StopSignal = int(unix.SIGKILL)
					return nil
				})
			})
			return errors.Join(err, b.StopContainer(t.Context(), ctr, time.Minute))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			pod, ctr := started(t, b)
			b.drv.starved = true
			if err := kill(b, pod, ctr); err != nil {
				t.Fatal(err)
			}
			wait(t, "the exit", func() bool {
				_, c, err := b.Catalog.GetContainer(ctr)
				return err == nil && c.State == sandbox.Exited
			})
			if _, c, _ := b.Catalog.GetContainer(ctr); c.ExitCode != 137 || c.Reason != sandbox.ReasonError {
				t.Errorf("it has ended with %d, %q", c.ExitCode, c.Reason)
			}
		})
	}
}

// TestKilledOnDemandByAnotherWay has the exit of a container that a client killed be found in the inventory of its
// monitor.
func TestKilledOnDemandByAnotherWay(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	p := b.Catalog.index.Load().pods[pod]
	l := p.containers.get(ctr)
	willKill(l, l.record())
	b.drv.inv = runtime.Inventory{Containers: map[string]runtime.Found{
		string(ctr): {State: runtime.Exited, Exit: &runtime.Exit{Code: 137, OOMKilled: true}},
	}}
	if err := takeInventory(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, c, _ := b.Catalog.GetContainer(ctr); c.ExitCode != 137 || c.Reason != sandbox.ReasonError {
		t.Errorf("it has ended with %d, %q", c.ExitCode, c.Reason)
	}
}

// refuses is a driver that kills nobody.
type refuses struct{ *driver }

func (refuses) KillAll(context.Context, string, string) error { return errors.New("refused") }

// TestKillThatFailed has a kill fail. The container lives on, and is killed for want of memory later: that is told.
func TestKillThatFailed(t *testing.T) {
	b := open(t)
	_, ctr := started(t, b)
	l, err := b.Catalog.adopted(t.Context(), ctr)
	if err != nil {
		t.Fatal(err)
	}
	was := l.runtime
	l.runtime = refuses{b.drv}
	if err := b.StopContainer(t.Context(), ctr, 0); err == nil {
		t.Error("its stop succeeded")
	}
	l.runtime = was
	b.drv.end(string(l.p.id), string(ctr), runtime.Exit{Code: 137, OOMKilled: true})
	wait(t, "the exit", func() bool {
		_, c, err := b.Catalog.GetContainer(ctr)
		return err == nil && c.State == sandbox.Exited
	})
	if _, c, _ := b.Catalog.GetContainer(ctr); c.Reason != sandbox.ReasonOOM {
		t.Errorf("it has ended with %d, %q", c.ExitCode, c.Reason)
	}
}

// TestOwnWatcher gives the daemon's own watcher what it asked for, and counts it as no client, also when it does not
// keep up.
func TestOwnWatcher(t *testing.T) {
	b := open(t)
	own := WatchFor(b.Pods, func(e Event) bool { return e.Kind == EventStopped })
	defer own.Close()
	if n := b.Feed.EventCounts().Watchers; n != 0 {
		t.Errorf("%d clients watch", n)
	}
	client := b.Feed.Watch()
	if n := b.Feed.EventCounts().Watchers; n != 1 {
		t.Errorf("%d clients watch, want 1", n)
	}
	client.Close()
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err == nil {
		err = b.Stop(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	take(t, own, fmt.Sprintf("pod %d", EventStopped))
	for range limit.UnreadEvents.Limit + 1 {
		b.Feed.publish(Event{Kind: EventStopped, ID: id, Record: &sandbox.Record{ID: id}})
	}
	if _, err := own.Next(t.Context()); err == nil {
		t.Error("it was not told that events were lost")
	}
	if got := b.Feed.EventCounts(); got.Dropped != 0 || EventTotals(b.Pods).Lost != 0 {
		t.Errorf("%d clients and %d events were lost", got.Dropped, EventTotals(b.Pods).Lost)
	}
}
