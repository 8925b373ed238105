package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"berth/internal/network"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// hasty is a runtime whose processes have ended before it says that it made them.
type hasty struct{ *driver }

func (h hasty) Create(ctx context.Context, pod string, c runtime.Create) (runtime.Process, error) {
	made, err := h.driver.Create(ctx, pod, c)
	h.pods.Exited(pod, c.Container, runtime.Exit{Code: 3, FinishedAt: time.Now()})
	return made, err
}

// TestExitBeforeCreated wants an exit that comes while the record still says creating to be the container's end.
func TestExitBeforeCreated(t *testing.T) {
	b := open(t)
	b.cfg.Runtime = hasty{b.drv}
	b.reopen(t)
	pod, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := b.Create(t.Context(), pod, containerConfig("c"))
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the exit in the record", func() bool {
		_, c, err := b.Catalog.GetContainer(ctr)
		return err == nil && c.State == sandbox.Exited && c.ExitCode == 3
	})
}

// cut is a network to which no pod is attached.
type cut struct{ *wires }

func (c cut) Attach(ctx context.Context, p network.Pod) (network.Result, error) {
	_, _ = c.wires.Attach(ctx, p)
	return network.Result{}, errors.New("the bridge is gone")
}

// TestPodWithoutNetworkIsUndone wants an error of the network to fail the pod, and nothing of the pod to be left.
func TestPodWithoutNetworkIsUndone(t *testing.T) {
	b := open(t)
	b.cfg.Network = cut{b.net}
	b.reopen(t)
	_, err := b.Run(t.Context(), podConfig("a"), "")
	if err == nil || !strings.Contains(err.Error(), "the bridge is gone") {
		t.Fatalf("the error is %v", err)
	}
	if n := len(b.Catalog.index.Load().pods); n != 0 {
		t.Errorf("%d pods are left", n)
	}
	if _, attached := b.net.state(); attached != 0 {
		t.Errorf("%d pods are still attached", attached)
	}
}
