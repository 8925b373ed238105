package pod

import (
	"context"
	"errors"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime"
)

// shortLived is a driver whose processes have ended, and been seen to, when their start returns.
type shortLived struct{ *driver }

func (d shortLived) Start(_ context.Context, pod, ctr string, _ runtime.Log, _ time.Duration) error {
	d.mu.Lock()
	delete(d.live, ctr)
	pods := d.pods
	d.mu.Unlock()
	pods.Exited(pod, ctr, runtime.Exit{Code: 137, FinishedAt: time.Now()})
	return nil
}

// TestInitEndsBeforeThePodIsReady has the container that stands for a pod end while the pod is made: the pod is refused
// and unmade, since no container could ever join it, and its name is free for the next try.
func TestInitEndsBeforeThePodIsReady(t *testing.T) {
	b := open(t)
	b.cfg.Bundle.Init = "/bin/true"
	b.cfg.Runtime = shortLived{b.drv}
	b.reopen(t)
	cfg := podConfig("a")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD // so that it has an init
	if _, err := b.Run(t.Context(), cfg, ""); !errors.Is(err, errInitEnded) {
		t.Errorf("run: %v", err)
	}
	if n := len(b.Catalog.List()); n != 0 {
		t.Errorf("%d pods are listed", n)
	}
	b.cfg.Runtime = b.drv
	b.reopen(t)
	if _, err := b.Run(t.Context(), cfg, ""); err != nil {
		t.Errorf("asked again: %v", err)
	}
}
