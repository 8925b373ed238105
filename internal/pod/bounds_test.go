package pod

import (
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/limit"
)

// TestPodHasSoManyContainers fills a pod, and makes room by removing one.
func TestPodHasSoManyContainers(t *testing.T) {
	all := limit.PodContainers
	limit.PodContainers = all.At(2)
	defer func() { limit.PodContainers = all }()
	b := open(t)
	pod, first := started(t, b)
	if _, err := b.Create(t.Context(), pod, containerConfig("d")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Create(t.Context(), pod, containerConfig("e"))
	if !fail.Is(err, errdefs.ErrResourceExhausted) || fail.Details(err).Limit != all.Name {
		t.Errorf("a third container: %v", err)
	}
	if again, err := b.Create(t.Context(), pod, containerConfig("c")); err != nil || again != first {
		t.Errorf("the first container asked for again: %q, %v", again, err)
	}
	if err := b.RemoveContainer(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), pod, containerConfig("e")); err != nil {
		t.Errorf("a container in the room of another: %v", err)
	}
}
