package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth/test/timeouts"
)

// wanted are updates of as many containers.
func wanted(containers int) (all []*api.ContainerUpdate) {
	for i := range containers {
		all = append(all, &api.ContainerUpdate{ContainerId: fmt.Sprint(i)})
	}
	return all
}

// TestChangeAll wants containers to be changed side by side, the changes of one in their order, and those that hang not
// to be waited for.
func TestChangeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		left := changeAll(t.Context(), time.Minute, wanted(40), func(context.Context, []*api.ContainerUpdate) {
			time.Sleep(time.Second)
		})
		if took := time.Since(begin); left != 0 || took != 5*time.Second {
			t.Errorf("40 changes of a second took %v, %d are left", took, left)
		}

		var mu sync.Mutex
		var order []string
		all := append(wanted(3), &api.ContainerUpdate{ContainerId: "1", IgnoreFailure: true})
		changeAll(t.Context(), time.Minute, all, func(_ context.Context, of []*api.ContainerUpdate) {
			mu.Lock()
			defer mu.Unlock()
			for _, u := range of {
				order = append(order, fmt.Sprint(u.GetContainerId(), u.GetIgnoreFailure()))
			}
		})
		if i := slices.Index(order, "1false"); len(order) != 4 || i < 0 || order[i+1] != "1true" {
			t.Errorf("in the order %q", order)
		}

		begin = time.Now()
		left = changeAll(t.Context(), 10*time.Second, wanted(20), func(_ context.Context, of []*api.ContainerUpdate) {
			if strings.HasSuffix(of[0].GetContainerId(), "1") {
				time.Sleep(time.Hour) // it does not look at its context
			}
		})
		if took := time.Since(begin); left != 2 || took != 10*time.Second {
			t.Errorf("where two hang: %d left after %v", left, took)
		}
		begin = time.Now()
		left = changeAll(t.Context(), 10*time.Second, wanted(20), func(ctx context.Context, _ []*api.ContainerUpdate) {
			<-ctx.Done()
		})
		if took := time.Since(begin); left < 12 || took != 10*time.Second {
			t.Errorf("where all hang: %d left after %v", left, took)
		}
		time.Sleep(2 * time.Hour) // for those that hang to end
	})
}

// TestNewPodsWaitForNoChanges wants a plugin whose changes hang to be dropped, and nobody to wait for them for longer
// than for its answer.
func TestNewPodsWaitForNoChanges(t *testing.T) {
	p := openPlugins(t, func(c *Config) { c.SynchronizationTimeout = timeouts.For(time.Second) })
	hang := make(chan struct{})
	defer close(hang)
	p.change = func(context.Context, []*api.ContainerUpdate) { <-hang }
	held, dropped := make(chan struct{}), make(chan struct{})
	w := &witness{gone: dropped, joining: func() []*api.ContainerUpdate {
		go func() {
			p.Hold()()
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
