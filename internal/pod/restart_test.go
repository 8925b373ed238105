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
	cfg := podConfig(name)
	cfg.Labels = map[string]string{sandbox.RunLabel: name}
	pod, err := b.Run(t.Context(), cfg, "")
	if err == nil {
		ctr, err = b.Create(t.Context(), pod, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "img"},
			Command:     []string{"x"},
			Annotations: map[string]string{annotation.KeyRestart: policy},
		})
	}
	if err == nil {
		err = b.Start(t.Context(), ctr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod, ctr
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
			startsAgain := func() bool {
				r, k, err := b.Catalog.GetContainer(ctr)
				if err != nil {
					t.Fatal(err)
				}
				return r.StartsAgain(k, 0)
			}
			wait(t, "the end", func() bool {
				_, k, err := b.Catalog.GetContainer(ctr)
				return err == nil && k.State == sandbox.Exited
			})
			if got := startsAgain(); got != c.again {
				t.Errorf("it starts again: %v", got)
			}
			b.reopen(t)
			if got := startsAgain(); got != c.again {
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
