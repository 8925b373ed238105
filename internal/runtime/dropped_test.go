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
	if Logged(g.cfg.State, g.pod, ctr) {
		t.Error("the log is said to have all, while it does not even say that it has not")
	}
	g.ok(os.Remove(path))
	g.hasSaid(ctr, "[berth: the log could not be written, 3 lines were dropped]")
	g.within(5*time.Second, "nothing is owed", func() bool { return Logged(g.cfg.State, g.pod, ctr) })
}

// dropsItsLastWords has a container say three lines, and end, while the disk of its log is full. path is what fills it.
func (g *rig) dropsItsLastWords(terminal bool) (ctr, path string) {
	g.Helper()
	ctr = g.run("while ! [ -e /tmp/go ]; do usleep 10000; done; echo one; echo two; echo three; exit 3",
		func(c *Create) { c.Terminal = terminal })
	path, err := volume.Fill(g.logs)
	g.ok(err)
	// The container may end before the runtime's exec does, which is killed then.
	_, _ = g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("touch /tmp/go"), Timeout: time.Minute})
	if e := g.exit(ctr); !honest(e, 3) {
		g.Errorf("exit %+v", e)
	}
	return ctr, path
}

// kill kills a process.
func kill(pid int) error { return unix.Kill(pid, unix.SIGKILL) }

// replaceMonitor has the monitor be killed and waits for the next one.
func (g *rig) replaceMonitor(by func(pid int) error) {
	g.Helper()
	old := g.monitor()
	g.ok(by(old))
	g.within(10*time.Second, "another monitor takes over", func() bool {
		c, err := g.links.monitor(g.Context(), g.pod)
		return err == nil && c.pid != old && c.pid != 0
	})
}

// saysOnce checks that the log says that three lines were dropped, once, and that nothing is kept for that any more.
func (g *rig) saysOnce(ctr string) {
	g.Helper()
	const notice = "[berth: the log could not be written, 3 lines were dropped]"
	g.hasSaid(ctr, notice)
	journal, owed := filepath.Join(g.cfg.bundle(g.pod, ctr), "journal"), owedDir(&g.cfg, g.pod, ctr)
	g.within(5*time.Second, "the journal is gone", func() bool { return !exists(journal) && !exists(owed) })
	if n := strings.Count(g.said(ctr), notice); n != 1 {
		g.Errorf("it is said %d times", n)
	}
}

// TestDroppedLastWordsOfKilledMonitors has the monitor be killed, twice, while a container that has ended owes its log
// that lines were dropped: the next one tells it, once. A daemon deletes a container soon after its end: here before
// the first kill, between them, or after the second.
func TestDroppedLastWordsOfKilledMonitors(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		for _, when := range []string{"never", "before", "between", "after"} {
			t.Run(fmt.Sprintf("terminal=%v,deleted=%s", terminal, when), func(t *testing.T) {
				g := newRig(t)
				volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
				ctr, path := g.dropsItsLastWords(terminal)
				forget := func(now string) {
					if when == now {
						g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
					}
					time.Sleep(100 * time.Millisecond)
				}
				forget("before")
				g.replaceMonitor(kill)
				forget("between")
				g.replaceMonitor(kill)
				forget("after")
				g.ok(os.Remove(path))
				g.saysOnce(ctr)
			})
		}
	}
}

// TestOwedToNoLog has what a deleted container's log is owed be left when its log is gone: the next monitor makes none.
func TestOwedToNoLog(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
	ctr, path := g.dropsItsLastWords(false)
	time.Sleep(100 * time.Millisecond)
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	if !exists(filepath.Join(owedDir(&g.cfg, g.pod, ctr), "journal")) {
		t.Error("what the log is owed went with the container")
	}
	log := filepath.Join(g.logs, g.log(ctr).Path)
	g.ok(os.Remove(log))
	g.replaceMonitor(kill)
	g.ok(os.Remove(path))
	g.within(10*time.Second, "it is forgotten", func() bool { return !exists(owedDir(&g.cfg, g.pod, ctr)) })
	if exists(log) {
		t.Error("a log was made for a container that is gone")
	}
}

// TestDamagedOwed has what is owed be damaged: the next monitor says so, forgets it, and serves.
func TestDamagedOwed(t *testing.T) {
	g := newRig(t)
	for name, data := range map[string]string{"short": "x", "empty": ""} {
		dir := owedDir(&g.cfg, g.pod, name)
		g.ok(os.MkdirAll(dir, 0o700))
		g.ok(os.WriteFile(filepath.Join(dir, "journal"), []byte(data), 0o600))
	}
	g.replaceMonitor(kill)
	for _, name := range []string{"short", "empty"} {
		g.within(10*time.Second, name+" is forgotten", func() bool { return !exists(owedDir(&g.cfg, g.pod, name)) })
	}
	ctr := g.run("echo one")
	g.hasSaid(ctr, "one")
}
