package restart

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/sandbox"
)

// hang has calls for what has an h in its name take long, and fail.
func (n *node) hang() {
	n.fail = func(call string) error { // with mu held
		if !strings.Contains(call, "h") {
			return nil
		}
		n.mu.Unlock()
		defer n.mu.Lock()
		time.Sleep(130 * time.Second)
		return errors.New("the volume hangs")
	}
}

// wantHealthyCalls wants those calls, beside calls for what hangs.
func (n *node) wantHealthyCalls(want ...string) {
	n.t.Helper()
	synctest.Wait()
	n.hold(func() {
		n.calls = slices.DeleteFunc(n.calls, func(call string) bool { return strings.Contains(call, "h") })
	})
	n.wantCalls(want...)
}

// TestHangingStartsDelayNoOther has as many pods as may start at the same time hang in their starts, again and again. A
// pod behind them starts some seconds later, and one that ends while they hang starts when its policy says.
func TestHangingStartsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pod("p", "always")
		for i := range atOnce {
			name := fmt.Sprint("h", i, "-")
			n.pod(name, "always")
			r := n.records[sandbox.ID(name+"0")].Clone()
			r.State = sandbox.Stopped
			n.records[r.ID] = r
			n.edit(r.Containers[0].ID, ended(255))
		}
		n.hang()
		keep(t, n, func() {
			n.end("c0", 1)
			time.Sleep(5 * time.Second)
			n.wantHealthyCalls("create c1 in p0 at 5s", "start c1 at 5s")
			if t.Failed() {
				return
			}
			n.end("c1", 1)
			time.Sleep(10 * time.Second)
			n.wantHealthyCalls("create c2 in p0 at 15s", "start c2 at 15s", "remove c0 at 15s")
			time.Sleep(126 * time.Second) // they hang for the second time
			n.end("c2", 1)
			time.Sleep(20 * time.Second)
			n.wantHealthyCalls("create c3 in p0 at 161s", "start c3 at 161s", "remove c1 at 161s")
		})
	})
}

// TestHangingRemovalsDelayNoOther is the same of pods that are removed at their end.
func TestHangingRemovalsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.passing("p", "/no/such/p_u", byHand("p"))
		for i := range atOnce {
			name := fmt.Sprint("h", i)
			n.passing(name, filepath.Join("/no/such", name+"_u"), byHand(name))
			n.edit(sandbox.ID(name), ended(0))
		}
		n.hang()
		keep(t, n, func() {
			time.Sleep(time.Second)
			n.end("p", 0)
			time.Sleep(time.Minute)
			n.wantHealthyCalls("stop pod-p at 7s", "remove pod-p at 7s")
		})
	})
}
