package pod

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// hung is a driver whose monitors, but for those of the pods in healthy, answer nothing until answer is closed.
type hung struct {
	*driver
	healthy map[string]bool
	answer  chan struct{}
}

func (h *hung) Adopt(ctx context.Context, pod string) (runtime.Inventory, error) {
	if h.healthy[pod] {
		return runtime.Inventory{}, nil
	}
	select {
	case <-h.answer:
		return runtime.Inventory{}, nil
	case <-ctx.Done():
		return runtime.Inventory{}, context.Cause(ctx)
	}
}

// More pods than are adopted at once have a monitor that hangs: the others are adopted beside them.
func TestHungMonitorsDelayNoOtherAdoption(t *testing.T) {
	b := open(t)
	h := &hung{driver: b.drv, healthy: map[string]bool{}, answer: make(chan struct{})}
	const hanging, healthy = 2*adoptionsAtOnce + 1, 5
	for i := range hanging + healthy {
		id, err := b.Run(t.Context(), podConfig(fmt.Sprint("p", i)), "")
		if err != nil {
			t.Fatal(err)
		}
		if i >= hanging {
			h.healthy[string(id)] = true
		}
	}
	b.end(t)
	answer := sync.OnceFunc(func() { close(h.answer) })
	t.Cleanup(answer) // before what removes the pods
	b.cfg.Runtime = h
	pods, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Pods, b.drv.pods = pods, pods
	done := pods.Recover()
	for id := range h.healthy {
		p := pods.Catalog.index.Load().pods[sandbox.ID(id)]
		wait(t, "the adoption of a pod whose monitor answers", func() bool { return closed(p.adopted) })
	}
	if closed(done) {
		t.Error("all are said to be adopted, and some are not")
	}
	answer()
	wait(t, "the adoption of all", func() bool { return closed(done) })
}
