package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/volume"
)

// TestDroppedLastWords has a container say all it says, and end, while the disk of its log is full. The log says that
// there was something once there is room.
func TestDroppedLastWords(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
	ctr := g.run("read go; echo one; echo two; echo three; exit 3", func(c *Create) { c.Stdin = true })
	path, err := volume.Fill(g.logs)
	g.ok(err)
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	if e := g.exit(ctr); !honest(e, 3) {
		t.Errorf("exit %+v", e)
	}
	time.Sleep(100 * time.Millisecond) // the log is left before there is room
	g.ok(os.Remove(path))
	g.hasSaid(ctr, "[berth: the log could not be written, 3 lines were dropped]")
}

// TestDroppedLastWordsOfKilledMonitors has the monitor be killed, twice, while a container that has ended owes its log
// that lines were dropped: the next one tells it, once.
func TestDroppedLastWordsOfKilledMonitors(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			g := newRig(t)
			volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
			ctr := g.run("while ! [ -e /tmp/go ]; do usleep 10000; done; echo one; echo two; echo three; exit 3",
				func(c *Create) { c.Terminal = terminal })
			path, err := volume.Fill(g.logs)
			g.ok(err)
			g.exec(ctr, "touch /tmp/go")
			if e := g.exit(ctr); !honest(e, 3) {
				t.Errorf("exit %+v", e)
			}
			for range 2 {
				time.Sleep(100 * time.Millisecond)
				old := g.monitor()
				g.ok(unix.Kill(old, unix.SIGKILL))
				g.within(10*time.Second, "another monitor takes over", func() bool {
					c, err := g.links.monitor(g.Context(), g.pod)
					return err == nil && c.pid != old && c.pid != 0
				})
			}
			g.ok(os.Remove(path))
			const notice = "[berth: the log could not be written, 3 lines were dropped]"
			g.hasSaid(ctr, notice)
			journal := filepath.Join(g.cfg.bundle(g.pod, ctr), "journal")
			g.within(5*time.Second, "the journal is gone", func() bool { return !exists(journal) })
			if n := strings.Count(g.said(ctr), notice); n != 1 {
				t.Errorf("it is said %d times", n)
			}
		})
	}
}
