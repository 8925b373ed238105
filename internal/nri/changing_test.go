package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth/internal/pod"
	"berth/test/timeouts"
)

// wanted are updates of as many containers.
func wanted(containers int) (all []*api.ContainerUpdate) {
	for i := range containers {
		u := &api.ContainerUpdate{ContainerId: fmt.Sprint(i)}
		u.SetLinuxCPUShares(7)
		all = append(all, u)
	}
	return all
}

// TestChangeAll wants containers to be changed side by side, the changes of one in their order, and those that hang not
// to be waited for.
func TestChangeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &changing{}
		begin := time.Now()
		left, _ := c.all(t.Context(), time.Minute, changes(wanted(40), nil), func(context.Context, []pod.Change) {
			time.Sleep(time.Second)
		})
		if took := time.Since(begin); left != 0 || took != 5*time.Second {
			t.Errorf("40 changes of a second took %v, %d are left", took, left)
		}

		var mu sync.Mutex
		var order []string
		all := append(changes(wanted(3), nil), pod.Change{Container: "1", Evict: true})
		c.all(t.Context(), time.Minute, all, func(_ context.Context, of []pod.Change) {
			mu.Lock()
			defer mu.Unlock()
			for _, ch := range of {
				order = append(order, fmt.Sprint(ch.Container, ch.Evict))
			}
		})
		if i := slices.Index(order, "1false"); len(order) != 4 || i < 0 || order[i+1] != "1true" {
			t.Errorf("in the order %q", order)
		}

		twenty := changes(wanted(20), nil)
		begin = time.Now()
		left, _ = c.all(t.Context(), 10*time.Second, twenty, func(_ context.Context, of []pod.Change) {
			if strings.HasSuffix(string(of[0].Container), "1") {
				time.Sleep(time.Hour) // it does not look at its context
			}
		})
		if took := time.Since(begin); left != 2 || took != 10*time.Second {
			t.Errorf("where two hang: %d left after %v", left, took)
		}
		var mended atomic.Int32
		left, stuck := c.all(t.Context(), 10*time.Second, twenty, func(context.Context, []pod.Change) { mended.Add(1) })
		if left != 0 || len(stuck) != 2 || mended.Load() != 18 {
			t.Errorf("where two still hang: %d left, %v stuck, %d changed", left, stuck, mended.Load())
		}
		time.Sleep(time.Hour) // for those that hang to end
		begin = time.Now()
		left, stuck = c.all(t.Context(), 10*time.Second, twenty, func(ctx context.Context, _ []pod.Change) {
			<-ctx.Done()
		})
		if took := time.Since(begin); left < 12 || len(stuck) > 0 || took != 10*time.Second {
			t.Errorf("where all hang: %d left and %v stuck after %v", left, stuck, took)
		}
		synctest.Wait()
		if len(c.underWay) > 0 {
			t.Errorf("under way for ever: %v", c.underWay)
		}
	})
}

// TestNewPodsWaitForNoChanges wants a plugin whose changes hang to be dropped, and nobody to wait for them for longer
// than for its answer.
func TestNewPodsWaitForNoChanges(t *testing.T) {
	p := openPlugins(t, func(c *Config) { c.SynchronizationTimeout = timeouts.For(time.Second) })
	hang := make(chan struct{})
	defer close(hang)
	p.change = func(context.Context, []pod.Change) { <-hang }
	held, dropped := make(chan struct{}), make(chan struct{})
	w := &witness{gone: dropped, joining: func() []*api.ContainerUpdate {
		go func() {
			holdOff(t, p)()
			close(held)
		}()
		return wanted(30)
	}}
	connect(t, p, "10", "policy", w)
	for what, c := range map[string]chan struct{}{"a new pod waits": held, "the plugin is not dropped": dropped} {
		select {
		case <-c:
		case <-time.After(timeouts.For(20 * time.Second)):
			t.Error(what)
		}
	}
	if got := p.Status().Plugins; got != 0 {
		t.Errorf("%d plugins", got)
	}
}

// TestNobodyWaitsForLateChanges has what a plugin wants of others at an end that was kept hang: other questions, and
// plugins that join, do not wait for it, and who told of the end waits for no longer than a plugin may take to join.
func TestNobodyWaitsForLateChanges(t *testing.T) {
	p := openPlugins(t, func(c *Config) { c.SynchronizationTimeout = timeouts.For(3 * time.Second) })
	begun, hang, told := make(chan struct{}), make(chan struct{}), make(chan struct{})
	defer close(hang)
	p.change = func(context.Context, []pod.Change) {
		close(begun)
		<-hang
	}
	policy := &witness{freed: wanted(1)}
	takePart(t, p, "10", "policy", policy)
	r, c := life(t)
	connect(t, p, "20", "late", &witness{joining: func() []*api.ContainerUpdate {
		if _, err := p.Tell(context.Background(), pod.ContainerStop, r, c); err != nil {
			t.Error(err)
		}
		go func() {
			holdOff(t, p)()
			close(told)
		}()
		return nil
	}})
	within := time.After(timeouts.For(20 * time.Second))
	select {
	case <-begun:
	case <-within:
		t.Fatal("what the plugin wants is not done")
	}
	asked := time.Now()
	holdOff(t, p)()
	takePart(t, p, "30", "next", &witness{})
	if took := time.Since(asked); took > p.cfg.SynchronizationTimeout/2 {
		t.Errorf("they waited for %v", took)
	}
	select {
	case <-told:
	case <-within:
		t.Error("who told of the end waits for ever")
	}
}

// TestAHungContainerKeepsNoPluginOut wants a plugin that joins again to take part although the change of one container
// still hangs, and the others to be changed.
func TestAHungContainerKeepsNoPluginOut(t *testing.T) {
	p := openPlugins(t, func(c *Config) { c.SynchronizationTimeout = timeouts.For(time.Second) })
	hang := make(chan struct{})
	defer close(hang)
	var hung, changed atomic.Int32
	p.change = func(_ context.Context, of []pod.Change) {
		if of[0].Container == "1" {
			hung.Add(1)
			<-hang
		}
		changed.Add(1)
	}
	dropped := make(chan struct{})
	joining := func() []*api.ContainerUpdate { return wanted(30) }
	connect(t, p, "10", "policy", &witness{gone: dropped, joining: joining})
	<-dropped
	takePart(t, p, "10", "policy", &witness{joining: joining})
	if hung.Load() != 1 || changed.Load() != 2*29 {
		t.Errorf("%d changes hang, %d were made", hung.Load(), changed.Load())
	}
}
