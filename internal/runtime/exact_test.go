package runtime

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// writer is a script that writes numbered lines to both streams, each of which ends in a dot: short ones, some that are
// longer than an entry, and some whose end comes late. It ends with code 3.
func writer(lines int, pause string) string {
	return "head -c 20000 /dev/zero | tr '\\0' x >/tmp/long; long=$(cat /tmp/long); i=0; " +
		"while [ $i -lt " + fmt.Sprint(lines) + " ]; do " +
		"case $i in *99) echo line $i $long.; echo err $i $long. >&2;; " +
		"*4950) printf 'line %d ' $i; " + pause + "; echo half.; echo err $i. >&2;; " +
		"*) echo line $i.; echo err $i. >&2;; esac; i=$((i+1)); done; exit 3"
}

// numbers is a script that writes short lines alone.
func numbers(lines int) string {
	return "i=0; while [ $i -lt " + fmt.Sprint(lines) + " ]; do echo line $i.; echo err $i. >&2; i=$((i+1)); " +
		"case $i in *00) usleep 10000;; esac; done; exit 3"
}

// count checks a log from its oldest file to its youngest: each line of a stream is there once, whole and in its order.
// It returns how many lines there are of each stream, how many are missing, and how many the log says were dropped.
func (g *rig) count(ctr string) (there [2]int, missing, dropped int) {
	g.Helper()
	path := filepath.Join(g.logs, g.log(ctr).Path)
	old, _ := filepath.Glob(path + ".*")
	slices.Sort(old)
	next, pending := [2]int{}, [2]string{}
	for _, file := range append(old, path) {
		all, _ := os.ReadFile(file) // the container may have ended before it was made anew
		data := string(all)
		if data != "" && !strings.HasSuffix(data, "\n") && file != path {
			g.Errorf("%s ends in the middle of an entry", file)
		}
		for line := range strings.Lines(data) {
			f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
			if len(f) != 4 || f[2] != "P" && f[2] != "F" {
				g.torn(file, line)
				continue
			}
			s := 0
			if f[1] == "stderr" {
				s = 1
			}
			if n := 0; strings.HasPrefix(f[3], "[berth:") {
				g.must(fmt.Sscanf(f[3], "[berth: the log could not be written, %d lines were dropped]", &n))
				dropped += n
				continue
			}
			if pending[s] += f[3]; f[2] == "P" {
				continue
			}
			var name string
			var n int
			if _, err := fmt.Sscanf(pending[s], "%s %d", &name, &n); err != nil || !strings.HasSuffix(pending[s], ".") {
				g.torn(file, line)
				pending[s] = ""
				continue
			}
			pending[s] = ""
			if n < next[s] {
				g.Fatalf("%s: %s %d is there again, or late: %d was expected", file, name, n, next[s])
			}
			missing += n - next[s]
			next[s] = n + 1
			there[s]++
		}
	}
	return there, missing, dropped
}

// torn takes an entry that is not whole. It is one only where a disk was full.
func (g *rig) torn(file, line string) {
	g.Helper()
	if g.small {
		return
	}
	g.Errorf("%s: an entry is torn: %.200q", file, line)
}

// whole checks that all lines of both streams are in the log of a container that has ended.
func (g *rig) whole(ctr string, lines int) {
	g.Helper()
	if e := g.exit(ctr); !honest(e, 3) {
		g.Errorf("exit %+v", e)
	}
	there, missing, dropped := g.count(ctr)
	if there != [2]int{lines, lines} || missing > 0 || dropped > 0 {
		g.Errorf("%v lines of %d are in the log; %d are missing in between, %d were dropped", there, lines, missing, dropped)
	}
}

// ended says whether a container's exit was told.
func (g *rig) told(ctr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.exits[ctr]) > 0
}

// rotate renames the log as a kubelet does, and has it reopened, also while no monitor answers.
func (g *rig) rotate(ctr string, n int) {
	path := filepath.Join(g.logs, g.log(ctr).Path)
	if os.Rename(path, fmt.Sprintf("%s.%04d", path, n)) != nil {
		return // it is not there yet
	}
	for end := time.Now().Add(timeouts.For(20 * time.Second)); g.ReopenLog(g.Context(), g.pod, ctr, g.log(ctr)) != nil; {
		if g.told(ctr) || time.Now().After(end) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// strike kills the monitor at random moments until a container has ended.
func (g *rig) strike(ctr string, also func(n int)) (kills int) {
	g.Helper()
	for end := time.Now().Add(timeouts.For(2 * time.Minute)); !g.told(ctr); kills++ {
		if time.Now().After(end) {
			g.Fatalf("the container does not end; its monitor was killed %d times", kills)
		}
		time.Sleep(time.Duration(rand.Intn(60_000)) * time.Microsecond)
		if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) == 1 {
			_ = unix.Kill(pids[0], unix.SIGKILL)
			if kills%4 > 0 { // else the next may be killed while it takes over
				g.succeeded(ctr, pids[0])
			}
		}
		also(kills)
	}
	return kills
}

// succeeded waits until a monitor has taken over from one that was killed, or the container's end was told.
func (g *rig) succeeded(ctr string, old int) {
	g.Helper()
	g.within(10*time.Second, "another monitor takes over", func() bool {
		c, err := g.links.monitor(g.Context(), g.pod)
		return g.told(ctr) || err == nil && c.pid != old && c.pid != 0
	})
}

// TestLogsOfKilledMonitors kills monitors at random moments while output flows and the log is rotated: nothing is lost,
// and nothing is there twice.
func TestLogsOfKilledMonitors(t *testing.T) {
	g := newRig(t)
	const lines = 60_000
	ctr := g.run(writer(lines, "usleep 300000"))
	kills := g.strike(ctr, func(n int) {
		if n%3 == 0 {
			g.rotate(ctr, n)
		}
	})
	g.whole(ctr, lines)
	t.Logf("%d kills", kills)
}

// TestLogOfAStoppedMonitor replaces a monitor that was stopped while output flows.
func TestLogOfAStoppedMonitor(t *testing.T) {
	g := newRig(t)
	const lines = 20_000
	ctr := g.run(writer(lines, "usleep 300000"))
	for range 5 {
		time.Sleep(time.Duration(rand.Intn(50_000)) * time.Microsecond)
		if g.told(ctr) {
			break
		}
		_ = unix.Kill(g.monitor(), unix.SIGSTOP)
		c := g.links.get(g.pod).live()
		if err := g.links.get(g.pod).replace(t.Context(), c, ReplacedStop); err != nil {
			t.Fatal(err)
		}
	}
	g.whole(ctr, lines)
}

// TestLastWordsWithoutMonitor has a container write what a pipe holds and end, while no monitor lives.
func TestLastWordsWithoutMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("read go; "+numbers(2000), func(c *Create) { c.Stdin = true })
	p := g.processOf(ctr)
	l := g.links.get(g.pod)
	l.turn <- struct{}{} // no monitor takes over before this test lets it
	g.ok(unix.Kill(g.monitor(), unix.SIGKILL))
	g.within(5*time.Second, "the monitor is gone", func() bool {
		pids, _ := g.cfg.monitorGroup(g.pod).Pids()
		return len(pids) == 0
	})
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	g.within(5*time.Second, "it has ended", func() bool { return ended(p.PID) })
	<-l.turn
	g.whole(ctr, 2000)
}

// TestFullDiskOfKilledMonitors fills the disk of the log and gives it room again while monitors are killed: what is
// missing is what the log says was dropped.
func TestFullDiskOfKilledMonitors(t *testing.T) {
	g := newRig(t)
	g.small = true
	g.ok(unix.Mount("tmpfs", g.logs, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { _ = unix.Unmount(g.logs, unix.MNT_DETACH) })
	filler := filepath.Join(g.logs, "filler")
	const lines = 40_000
	ctr := g.run(numbers(lines))
	for full := false; !g.told(ctr); full = !full {
		if full {
			g.ok(os.Remove(filler))
		} else if f, err := os.Create(filler); err == nil {
			room := make([]byte, 64<<10)
			for err == nil {
				_, err = f.Write(room)
			}
			g.ok(f.Close())
		}
		time.Sleep(time.Duration(rand.Intn(40_000)) * time.Microsecond)
		if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) == 1 && rand.Intn(3) > 0 {
			_ = unix.Kill(pids[0], unix.SIGKILL)
			if rand.Intn(4) > 0 {
				g.succeeded(ctr, pids[0])
			}
		}
	}
	there, missing, dropped := g.count(ctr)
	t.Logf("%v lines, %d missing in between, %d told as dropped", there, missing, dropped)
	if tail := 2*lines - there[0] - there[1] - missing; dropped < missing || dropped > missing+tail {
		t.Errorf("%d lines are missing, and %d at the end; %d were told as dropped", missing, tail, dropped)
	}
}
