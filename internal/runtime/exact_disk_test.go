package runtime

import (
	"context"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/process"
	"berth/test/volume"
)

// newSmallRig is a rig whose state is on a file system of its own, of a few MiB.
func newSmallRig(t *testing.T) (g *rig, state string) {
	t.Helper()
	state = newState(t)
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=8m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	g = newRigIn(t, state)
	t.Cleanup(g.clear)
	return g, state
}

// TestFullStateOfKilledMonitors has the file system of the journals be full while output flows and monitors are killed:
// nothing is lost, though no monitor can take over before there is room.
func TestFullStateOfKilledMonitors(t *testing.T) {
	t.Parallel()
	g, state := newSmallRig(t)
	const lines = 30_000
	ctr := g.run(writer(lines, "usleep 200000"))
	for range 6 {
		path, err := volume.Fill(state)
		g.ok(err)
		time.Sleep(time.Duration(rand.Intn(200)) * time.Millisecond)
		if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) == 1 {
			_ = unix.Kill(pids[0], unix.SIGKILL)
		}
		time.Sleep(time.Duration(rand.Intn(100)) * time.Millisecond)
		g.ok(os.Remove(path))
		g.within(5*time.Second, "a monitor has taken over", func() bool {
			_, err := g.links.monitor(t.Context(), g.pod)
			return err == nil
		})
	}
	g.whole(ctr, lines)
}

// TestFullStateWhileOutputFlows has a container say all it says while the file system of its journal is full.
func TestFullStateWhileOutputFlows(t *testing.T) {
	t.Parallel()
	g, state := newSmallRig(t)
	const lines = 10_000
	ctr := g.run("read go; "+writer(lines, "usleep 200000"), func(c *Create) { c.Stdin = true })
	path, err := volume.Fill(state)
	g.ok(err)
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	g.whole(ctr, lines)
	g.ok(os.Remove(path))
}

// TestHungDiskOfAKilledMonitor kills a monitor that writes to a disk that hangs. A client of the stream that was not
// being written has all of it meanwhile, and all is in the log when the disk answers.
func TestHungDiskOfAKilledMonitor(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 64)
	ctr := g.run("read go; yes line | head -c 3000000 & usleep 300000; i=0; "+
		"while [ $i -lt 500 ]; do echo err $i >&2; usleep 100; i=$((i+1)); done; echo said >&2; wait; exit 3",
		func(c *Create) { c.Stdin = true })
	errs, ready := &syncBuffer{}, make(chan struct{})
	go func() {
		_ = g.Attach(t.Context(), g.pod, ctr, Attach{Stderr: errs, Ready: func() { close(ready) }})
	}()
	<-ready
	thaw, err := volume.Freeze(g.logs)
	g.ok(err)
	thaw = sync.OnceValue(thaw)
	t.Cleanup(func() { _ = thaw() })
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	g.within(5*time.Second, "the client has the other stream", func() bool {
		return strings.Contains(errs.String(), "said\n")
	})
	old := g.monitor()
	g.ok(unix.Kill(old, unix.SIGKILL))
	time.Sleep(200 * time.Millisecond)
	g.ok(thaw())
	g.ends(old, "the monitor")
	if e := g.exit(ctr); !honest(e, 3) {
		t.Errorf("exit %+v", e)
	}
	said := g.said(ctr)
	if n, m := strings.Count(said, "line\n"), strings.Count(said, "err "); n != 600_000 || m != 500 {
		t.Errorf("the log has %d and %d lines of 600000 and 500", n, m)
	}
}

// TestMonitorThatCannotDie kills a monitor that waits for a disk that hangs, and so is there until the disk answers.
// What the zombies of its containers tell is kept, and it takes no place of other monitors.
func TestMonitorThatCannotDie(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 64)
	ctr := g.run("read go; echo line; read end; exit 3", func(c *Create) { c.Stdin = true })
	thaw, err := volume.Freeze(g.logs)
	g.ok(err)
	thaw = sync.OnceValue(thaw)
	t.Cleanup(func() { _ = thaw() })
	old, bundle := g.monitor(), g.cfg.bundle(g.pod, ctr)
	stdin := filepath.Join(bundle, "stdin")
	g.ok(os.WriteFile(stdin, []byte("\n"), 0))
	time.Sleep(300 * time.Millisecond) // it begins to write, and waits in the kernel
	g.ok(unix.Kill(old, unix.SIGKILL))
	g.ok(os.WriteFile(stdin, []byte("\n"), 0))
	p, err := g.cfg.processOf(g.pod, ctr)
	g.ok(err)
	g.within(5*time.Second, "the container has ended", func() bool {
		_, ok := process.Ending(p.PID, p.StartTime, nil)
		return ok
	})
	l := g.links.get(g.pod)
	for i := range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := l.replace(ctx, l.live(), ReplacedStop)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "is still there") {
			t.Errorf("it was replaced: %v", err)
		}
		if _, err := os.Stat(filepath.Join(bundle, exitFile)); err != nil {
			t.Errorf("what the zombie told is lost: %v", err)
		}
		for range mostReplaced * (1 - i) { // all places are taken the second time
			l.changes.slots <- struct{}{}
		}
		time.Sleep(300 * time.Millisecond) // who tries to start the next one has the turn, and gives it up when asked
	}
	for range mostReplaced {
		<-l.changes.slots
	}
	g.ok(thaw())
	if e := g.exit(ctr); !honest(e, 3) {
		t.Errorf("exit %+v", e)
	}
}

// TestHungDiskAtTheEnd has a container end, and be cleared away, while the disk of its log hangs. Neither waits for the
// disk, and all that it said is in the log when the disk answers.
func TestHungDiskAtTheEnd(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 64)
	ctr := g.run("read go; i=0; while [ $i -lt 100 ]; do echo tick $i; echo err $i >&2; usleep 3000; i=$((i+1)); done; "+
		"exit 3",
		func(c *Create) { c.Stdin = true })
	thaw, err := volume.Freeze(g.logs)
	g.ok(err)
	thaw = sync.OnceValue(thaw)
	t.Cleanup(func() { _ = thaw() })
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	if e := g.exit(ctr); !honest(e, 3) {
		t.Errorf("exit %+v", e)
	}
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.ok(thaw())
	g.within(10*time.Second, "all that it said is in the log", func() bool {
		said := g.said(ctr)
		return strings.Count(said, "tick ") == 100 && strings.Count(said, "err ") == 100
	})
}

// TestLogOfMixedReleases has a monitor be killed that writes, then one of an earlier release take over, which knows of
// no journal, and one of this release again. What the first could not write is there, late, and nothing is there twice.
func TestLogOfMixedReleases(t *testing.T) {
	before := os.Getenv(monitorBefore)
	if before == "" {
		t.Skip(monitorBefore + " names no monitor of an earlier release")
	}
	if len(monitorFlags) > 0 {
		t.Skip("what the daemon starts is changed while it runs")
	}
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 64)
	ctr := g.run("while read line; do echo $line.; done; exit 3", func(c *Create) { c.Stdin = true })
	say := func(line string) {
		g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte(line+"\n"), 0))
	}
	say("first")
	g.hasSaid(ctr, "first.")
	thaw, err := volume.Freeze(g.logs)
	g.ok(err)
	say("cut off")
	time.Sleep(100 * time.Millisecond)
	say("taken")
	time.Sleep(100 * time.Millisecond)
	g.cfg.Monitor = before
	old := g.monitor()
	g.ok(unix.Kill(old, unix.SIGKILL))
	g.ok(thaw())
	g.ends(old, "the monitor")
	say("older")
	g.hasSaid(ctr, "older.")
	g.cfg.Monitor = host.monitor
	g.killMonitor()
	say("younger")
	g.hasSaid(ctr, "younger.")
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	g.exit(ctr)
	got := strings.Fields(strings.ReplaceAll(g.said(ctr), "cut off", "cut-off"))
	if len(got) == 0 || got[0] != "first." || got[len(got)-1] != "younger." {
		t.Errorf("the log has %v", got)
	}
	slices.Sort(got)
	if want := []string{"cut-off.", "first.", "older.", "taken.", "younger."}; !slices.Equal(got, want) {
		t.Errorf("the log has %v, not %v", got, want)
	}
}
