package runtime

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
