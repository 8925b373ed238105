//go:build berth_fault

package runtime

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func init() { monitorFlags = append(monitorFlags, "-tags=berth_fault") }

// TestLogOfAMonitorKilledAt kills monitors at each point of what they do with output, the first three of a pod.
func TestLogOfAMonitorKilledAt(t *testing.T) {
	var plans []string
	for _, point := range []string{"log.taken", "log.noted", "log.written", "log.brought", "log.rebased"} {
		for _, nth := range []int{1, 2, 5, 17} {
			plans = append(plans, fmt.Sprintf("monitor.%s=kill#%d", point, nth))
		}
	}
	for _, point := range []string{"exit.before", "exit.after", "exit.drained"} {
		plans = append(plans, "monitor."+point+"=kill")
	}
	for _, point := range []string{"takeover.before", "takeover.after"} {
		plans = append(plans, "monitor.log.noted=kill#3,monitor."+point+"=kill")
		plans = append(plans, "monitor.log.written=kill#4,monitor."+point+"=kill")
	}
	for _, plan := range plans {
		t.Run(plan, func(t *testing.T) {
			t.Setenv("BERTH_FAULT", plan)
			g := newQuietRig(t)
			defer g.clear()
			first := g.monitor()
			const lines = 3000
			ctr := g.run("usleep 200000; " + writer(lines, "usleep 300000"))
			seen := map[int]bool{first: true}
			for end := time.Now().Add(20 * time.Second); len(seen) < 4 && !g.told(ctr) && time.Now().Before(end); {
				if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) == 1 {
					seen[pids[0]] = true
				}
				time.Sleep(time.Millisecond)
			}
			_ = os.Unsetenv("BERTH_FAULT")
			g.whole(ctr, lines)
			if len(seen) < 2 {
				t.Error("no monitor was killed")
			}
		})
	}
}

// TestLimitedLogOfAMonitorKilledAt kills monitors at each point of what they do with a log that is limited: nothing is
// there twice, and what is there and what the log says was dropped is all.
func TestLimitedLogOfAMonitorKilledAt(t *testing.T) {
	for _, point := range []string{"taken", "noted", "written", "brought", "rebased", "excess"} {
		for _, nth := range []int{1, 3, 9} {
			plan := fmt.Sprintf("monitor.log.%s=kill#%d", point, nth)
			t.Run(plan, func(t *testing.T) {
				t.Setenv("BERTH_FAULT", plan)
				g := newQuietRig(t)
				defer g.clear()
				const lines = 6000
				ctr := g.limitedTo(100_000, 32<<10, "usleep 200000; "+numbers(lines))
				seen := map[int]bool{}
				for end := time.Now().Add(20 * time.Second); len(seen) < 4 && !g.told(ctr) && time.Now().Before(end); {
					if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) == 1 {
						seen[pids[0]] = true
					}
					time.Sleep(time.Millisecond)
				}
				_ = os.Unsetenv("BERTH_FAULT")
				if e := g.exit(ctr); !honest(e, 3) {
					t.Errorf("exit %+v", e)
				}
				sum := g.tally(ctr)
				if sum.dropped == 0 || sum.lines+sum.dropped != 2*lines {
					t.Errorf("%+v of %d lines", sum, 2*lines)
				}
				if len(seen) < 2 {
					t.Error("no monitor was killed")
				}
			})
		}
	}
}
