package runtime

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMonitorKilledByItsCgroup has a monitor be ended by cgroup.kill, and its group stay, as after a daemon that was
// killed before it could remove it: the next one lives all the same.
func TestMonitorKilledByItsCgroup(t *testing.T) {
	g := newRig(t)
	ctr := g.run("trap 'exit 5' TERM; echo on; while :; do usleep 10000; done")
	g.hasSaid(ctr, "on")
	for range 2 {
		g.replaceMonitor(func(int) error {
			return os.WriteFile(filepath.Join(g.cfg.monitorGroup(g.pod).Path(), "cgroup.kill"), []byte("1"), 0)
		})
	}
	g.ok(g.Signal(t.Context(), g.pod, ctr, 15))
	if e := g.exit(ctr); !honest(e, 5) {
		t.Errorf("exit %+v", e)
	}
}
