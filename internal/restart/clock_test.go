package restart

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/sandbox"
)

// TestClockSetBack has the clock be set back by an hour while no daemon runs, after a container has ended, and after
// its next attempt was made and not started: neither is waited for until that hour is over.
func TestClockSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		made bool
		want []string
	}{
		"ended": {false, []string{"create c1 in p0 at 0s", "start c1 at 0s"}},
		"made":  {true, []string{"start c1 at 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.pod("p", "always")
				if c.made {
					n.fail = func(call string) error { // the daemon is killed before it starts what it has made
						if strings.HasPrefix(call, "start") {
							return context.Canceled
						}
						return nil
					}
					keep(t, n, func() {
						n.end("c0", 1)
						n.wantCalls("create c1 in p0 at 0s", "start c1 at 0s")
					})
					n.fail = nil
				}
				n.hold(func() {
					n.edit("c0", ended(1))
					for _, k := range n.records["p0"].Containers {
						n.edit(k.ID, func(k *sandbox.Container) {
							k.CreatedAt = k.CreatedAt.Add(time.Hour)
							if k.State == sandbox.Exited {
								k.FinishedAt = k.FinishedAt.Add(time.Hour)
							}
						})
					}
				})
				keep(t, n, func() { n.wantCalls(c.want...) })
			})
		})
	}
}
