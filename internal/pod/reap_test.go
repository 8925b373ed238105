package pod

import (
	"context"
	"sync/atomic"
	"testing"

	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// clearings is a driver that counts how often the containers of which it is asked are cleared away.
type clearings struct {
	*driver
	n *atomic.Int32
}

func (d clearings) Delete(context.Context, string, string, runtime.Handler) error {
	d.n.Add(1)
	return nil
}

func reaped(b *bench, ctr sandbox.ID) bool {
	_, c, err := b.Catalog.GetContainer(ctr)
	return err == nil && c.Reaped
}

// What was cleared away of a container that ended is not cleared away again: not by the next daemon, the stop of the
// pod or the removal of the container.
func TestEndedContainerIsReapedOnce(t *testing.T) {
	b := open(t)
	var n atomic.Int32
	b.cfg.Runtime = clearings{b.drv, &n}
	b.reopen(t)
	pod, ctr := started(t, b)
	if err := b.StopContainer(t.Context(), ctr, 0); err != nil {
		t.Fatal(err)
	}
	wait(t, "the reap", func() bool { return reaped(b, ctr) })
	b.reopen(t)
	if !reaped(b, ctr) {
		t.Error("the record does not say that the container is reaped")
	}
	if err := b.Stop(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveContainer(t.Context(), ctr); err != nil {
		t.Fatal(err)
	}
	b.end(t) // what goes on in the background is counted too
	if got := n.Load(); got != 1 {
		t.Errorf("cleared away %d times", got)
	}
	b.reopen(t)
}

// A record of an earlier release does not say that the container is reaped: that is done once more.
func TestContainerOfAnEarlierReleaseIsReapedOnce(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	if err := b.StopContainer(t.Context(), ctr, 0); err != nil {
		t.Fatal(err)
	}
	wait(t, "the reap", func() bool { return reaped(b, ctr) })
	err := b.Catalog.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error { c.Reaped = false; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int32
	b.cfg.Runtime = clearings{b.drv, &n}
	b.reopen(t)
	wait(t, "the reap", func() bool { return reaped(b, ctr) })
	b.reopen(t)
	b.end(t)
	if got := n.Load(); got != 1 {
		t.Errorf("cleared away %d times", got)
	}
	b.reopen(t)
}
