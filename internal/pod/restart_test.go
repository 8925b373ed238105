package pod

import (
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// byHand starts a pod of one container as berth run does, with a restart policy.
func (b *bench) byHand(t *testing.T, name, policy string) (pod, ctr sandbox.ID) {
	t.Helper()
	pod = b.sandboxByHand(t, name, 0)
	return pod, b.attemptByHand(t, pod, name, policy, 0)
}

// sandboxByHand makes a sandbox of a pod as berth run does.
func (b *bench) sandboxByHand(t *testing.T, name string, attempt uint32) sandbox.ID {
	t.Helper()
	cfg := podConfig(name)
	cfg.Labels, cfg.Metadata.Attempt = map[string]string{sandbox.RunLabel: name}, attempt
	id, err := b.Run(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// attemptByHand starts an attempt of a container with a restart policy.
func (b *bench) attemptByHand(t *testing.T, pod sandbox.ID, name, policy string, attempt uint32) sandbox.ID {
	t.Helper()
	id, err := b.Create(t.Context(), pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: "img"},
		Command:     []string{"x"},
		Annotations: map[string]string{annotation.KeyRestart: policy},
	})
	if err == nil {
		err = b.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// startsAgain reports whether a container that has ended starts again by itself, as its record says.
func (b *bench) startsAgain(t *testing.T, ctr sandbox.ID) bool {
	t.Helper()
	r, c, err := b.Catalog.GetContainer(ctr)
	if err != nil {
		t.Fatal(err)
	}
	return r.StartsAgain(c, 0)
}

// exit ends a container by itself.
func (b *bench) exit(t *testing.T, pod, ctr sandbox.ID) {
	t.Helper()
	b.Exited(string(pod), string(ctr), runtime.Exit{Code: 1})
	wait(t, "the end", func() bool {
		_, c, err := b.Catalog.GetContainer(ctr)
		return err == nil && c.State == sandbox.Exited && c.Reaped
	})
}

// TestStopIsNoted ends containers in every way, and asks whether they start again by themselves, now and after a
// restart of the daemon.
func TestStopIsNoted(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(b *bench, pod, ctr sandbox.ID) error
		again bool
	}{
		"by itself": {func(b *bench, pod, ctr sandbox.ID) error {
			b.Exited(string(pod), string(ctr), runtime.Exit{Code: 1})
			return nil
		}, true},
		"its sandbox": {func(b *bench, pod, ctr sandbox.ID) error {
			p, _, err := b.Catalog.findContainer(ctr)
			if err == nil {
				err = stopPod(t.Context(), p)
			}
			return err
		}, true},
		"it was stopped": {func(b *bench, _, ctr sandbox.ID) error {
			return b.StopContainer(t.Context(), ctr, 0)
		}, false},
		"its pod was stopped": {func(b *bench, pod, _ sandbox.ID) error { return b.Stop(t.Context(), pod) }, false},
		"it was killed": {func(b *bench, _, ctr sandbox.ID) error {
			return Signal(t.Context(), b.Pods, ctr, "KILL")
		}, false},
		"it was sent another signal": {func(b *bench, _, ctr sandbox.ID) error {
			return Signal(t.Context(), b.Pods, ctr, "USR1")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			pod, ctr := b.byHand(t, "a", "always")
			if err := c.end(b, pod, ctr); err != nil {
				t.Fatal(err)
			}
			wait(t, "the end", func() bool {
				_, k, err := b.Catalog.GetContainer(ctr)
				return err == nil && k.State == sandbox.Exited
			})
			if got := b.startsAgain(t, ctr); got != c.again {
				t.Errorf("it starts again: %v", got)
			}
			b.reopen(t)
			if got := b.startsAgain(t, ctr); got != c.again {
				t.Errorf("after a restart of the daemon it starts again: %v", got)
			}
		})
	}
}

// TestBadRestartPolicy refuses one that is none, whoever asks.
func TestBadRestartPolicy(t *testing.T) {
	b := open(t)
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Create(t.Context(), id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "img"},
		Command:     []string{"x"},
		Annotations: map[string]string{annotation.KeyRestart: "sometimes"},
	})
	if !fail.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
}

// TestRemovalIsNoted removes what runs, without a stop before: whoever is told of its end finds that a client has asked
// for it.
func TestRemovalIsNoted(t *testing.T) {
	for name, remove := range map[string]func(b *bench, pod, ctr sandbox.ID) error{
		"a container": func(b *bench, _, ctr sandbox.ID) error { return b.RemoveContainer(t.Context(), ctr) },
		"its pod":     func(b *bench, pod, _ sandbox.ID) error { return b.Remove(t.Context(), pod) },
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			pod, ctr := b.byHand(t, "a", "always")
			w := WatchFor(b.Pods, func(e Event) bool { return e.Kind == EventStopped })
			defer w.Close()
			if err := remove(b, pod, ctr); err != nil {
				t.Fatal(err)
			}
			e, err := w.Next(t.Context())
			if err != nil || e.ID != ctr {
				t.Fatalf("told %+v, %v", e, err)
			}
			if e.Record.StartsAgain(e.Record.Container(ctr), 0) {
				t.Error("it starts again")
			}
		})
	}
}

// TestRemovalOfAnAttempt removes the last attempt of a container that has ended: the one before, which is kept for its
// log, does not start again in its place, in the same sandbox or in an older one. Another container does.
func TestRemovalOfAnAttempt(t *testing.T) {
	b := open(t)
	old, first := b.byHand(t, "a", "always")
	if err := stopPod(t.Context(), b.Catalog.index.Load().pods[old]); err != nil {
		t.Fatal(err)
	}
	pod := b.sandboxByHand(t, "a", 1)
	second := b.attemptByHand(t, pod, "a", "always", 1)
	other := b.attemptByHand(t, pod, "b", "always", 0)
	for _, ctr := range []sandbox.ID{second, other} {
		b.exit(t, pod, ctr)
	}
	third := b.attemptByHand(t, pod, "a", "always", 2)
	b.exit(t, pod, third)
	if err := b.RemoveContainer(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if !b.startsAgain(t, third) {
		t.Error("the last attempt does not start again, after another was removed")
	}
	second = b.attemptByHand(t, pod, "a", "always", 1)
	b.exit(t, pod, second)
	if err := b.RemoveContainer(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if b.startsAgain(t, first) || b.startsAgain(t, second) {
		t.Error("an attempt before starts again")
	}
	if !b.startsAgain(t, other) {
		t.Error("another container does not start again")
	}
}

// TestRemovalOfASandbox removes the last sandbox of a pod: nothing starts again that an older one has. An empty sandbox
// is what a start leaves that has failed, and the pod is as it was.
func TestRemovalOfASandbox(t *testing.T) {
	for name, empty := range map[string]bool{"with a container": false, "empty": true} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			old, ctr := b.byHand(t, "a", "always")
			if err := stopPod(t.Context(), b.Catalog.index.Load().pods[old]); err != nil {
				t.Fatal(err)
			}
			last := b.sandboxByHand(t, "a", 1)
			if !empty {
				b.attemptByHand(t, last, "a", "always", 1)
			}
			if err := b.Remove(t.Context(), last); err != nil {
				t.Fatal(err)
			}
			if got := b.startsAgain(t, ctr); got != empty {
				t.Errorf("the attempt before starts again: %v", got)
			}
		})
	}
}

// TestReplacingIsNoRemoval has an attempt be in the way of itself, since it could not be undone: that it is made again
// is nobody's wish for an end.
func TestReplacingIsNoRemoval(t *testing.T) {
	b := open(t)
	pod, first := b.byHand(t, "a", "always")
	b.exit(t, pod, first)
	second := b.attemptByHand(t, pod, "a", "always", 1)
	p, _, err := b.Catalog.findContainer(second)
	if err != nil {
		t.Fatal(err)
	}
	b.exit(t, pod, second)
	err = p.publish("test", func(r *sandbox.Record) error {
		return r.Edit(second, func(c *sandbox.Container) error { return c.MoveTo(sandbox.Removing) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if again := b.attemptByHand(t, pod, "a", "always", 1); again == second {
		t.Error("it was not made again")
	}
	if !b.startsAgain(t, first) {
		t.Error("the attempt before does not start again")
	}
}
