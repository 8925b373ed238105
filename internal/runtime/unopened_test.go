package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readOnly has no log be opened for writing, until it is undone.
func (g *rig) readOnly() (undo func()) {
	g.Helper()
	g.ok(unix.Mount(g.logs, g.logs, "", unix.MS_BIND, ""))
	undo = sync.OnceFunc(func() { g.ok(unix.Unmount(g.logs, unix.MNT_DETACH)) })
	g.Cleanup(undo)
	g.ok(unix.Mount("", g.logs, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	return undo
}

// letEnd has a container end that waits for a file.
func (g *rig) letEnd(ctr string, code int32) {
	g.Helper()
	_, _ = g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("touch /tmp/go"), Timeout: time.Minute})
	if e := g.exit(ctr); !honest(e, code) {
		g.Errorf("exit %+v", e)
	}
}

// TestTakeoverOfALogThatCannotBeOpened has a monitor be killed while the disk of the logs is read-only. The next one
// goes on with the log when that is over, says how much was dropped meanwhile, and leaves no torn entry.
func TestTakeoverOfALogThatCannotBeOpened(t *testing.T) {
	g := newRig(t)
	ctr := g.run("i=0; while ! [ -e /tmp/go ]; do echo line $i; i=$((i+1)); usleep 50000; done")
	g.hasSaid(ctr, "line 3")
	monitor := g.monitor()
	g.ok(unix.Kill(monitor, unix.SIGSTOP))
	log := filepath.Join(g.logs, g.log(ctr).Path)
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	g.ok(err)
	_, err = f.WriteString("2026-11-28T00:00:00.000000000Z stdout F cut o") // an entry that was being written
	g.ok(err)
	g.ok(f.Close())
	undo := g.readOnly()
	g.replaceMonitor(kill)
	time.Sleep(500 * time.Millisecond)
	undo()
	g.hasSaid(ctr, "lines were dropped]")
	was := strings.Count(g.said(ctr), "line ")
	g.within(10*time.Second, "the log goes on", func() bool { return strings.Count(g.said(ctr), "line ") > was+3 })
	g.letEnd(ctr, 0)
	for i, line := range strings.Split(strings.TrimSpace(g.said(ctr)), "\n") {
		if strings.Count(line, " stdout ")+strings.Count(line, " stderr ") > 1 {
			t.Errorf("entry %d: %q", i, line)
		}
	}
}

// TestEndWithALogThatCannotBeOpened is the same with a container that ends before the disk can be written to again, and
// with one whose log is gone with its directory.
func TestEndWithALogThatCannotBeOpened(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%v", gone), func(t *testing.T) {
			g := newRig(t)
			ctr := g.run("echo one; while ! [ -e /tmp/go ]; do usleep 10000; done; echo two; exit 3")
			g.hasSaid(ctr, "one")
			if gone {
				g.ok(os.RemoveAll(filepath.Dir(filepath.Join(g.logs, g.log(ctr).Path))))
			}
			undo := g.readOnly()
			g.replaceMonitor(kill)
			g.letEnd(ctr, 3)
			time.Sleep(100 * time.Millisecond)
			undo()
			if !gone {
				g.hasSaid(ctr, "[berth: the log could not be written, 1 lines were dropped]")
			}
			journal := filepath.Join(g.cfg.bundle(g.pod, ctr), "journal")
			g.within(5*time.Second, "the journal is gone", func() bool { return !exists(journal) })
		})
	}
}
