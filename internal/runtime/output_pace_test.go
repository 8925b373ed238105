package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadsAt are the threads of a process by their priority.
func threadsAt(pid int) map[int]int {
	all := map[int]int{}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, d := range threads {
		id, _ := strconv.Atoi(d.Name())
		if n, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil {
			all[20-n]++
		}
	}
	return all
}

// TestFloodStandsBack has a container write without end: its monitor yields to other processes, what is started by then
// does not, and with the flood that ends.
func TestFloodStandsBack(t *testing.T) {
	g := newRig(t)
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	g.ok(err)
	usual, back := 20-n, 20-n+5
	ctr := g.run("while [ ! -e /tmp/stop ]; do seq 100000; done; while :; do echo quiet; usleep 100000; done")
	g.within(20*time.Second, "the monitor stands back", func() bool {
		at := threadsAt(g.monitor())
		return at[usual] == 0 && at[back] > 0
	})
	if out, code := g.exec(ctr, "cut -d' ' -f19 /proc/self/stat; touch /tmp/stop"); code != 0 ||
		strings.TrimSpace(out) != strconv.Itoa(usual) {
		t.Errorf("a command has priority %q, exit code %d", out, code)
	}
	second := g.run("sleep 1000")
	if at := threadsAt(g.processOf(second).PID); len(at) != 1 || at[usual] == 0 {
		t.Errorf("the threads of a container that was started have priorities %v", at)
	}
	g.within(20*time.Second, "the monitor is as it was", func() bool {
		at := threadsAt(g.monitor())
		return at[usual] > 0 && at[back] == 0
	})
}

// TestLinesGather has a container write each line by itself, many a second. Its monitor takes several at once, and all
// of them come to the log.
func TestLinesGather(t *testing.T) {
	g := newRig(t)
	const lines = 100_000
	script := fmt.Sprintf("read go; i=0; while [ $i -lt %d ]; do echo line number $i; i=$((i+1)); done", lines)
	ctr := g.run(script, func(c *Create) { c.Stdin = true })
	calls := func() (sum int) { // of the threads: the process has those of the children that it has waited for
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/io", g.monitor()))
		for _, path := range threads {
			data := g.must(os.ReadFile(path)).([]byte)
			for line := range strings.Lines(string(data)) {
				if text, ok := strings.CutPrefix(line, "syscw: "); ok {
					n := 0
					g.must(fmt.Sscan(text, &n))
					sum += n
				}
			}
		}
		return sum
	}
	before := calls()
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	g.exit(ctr)
	if said := strings.Count(g.said(ctr), "\n"); said != lines {
		t.Errorf("%d lines are in the log", said)
	}
	if n := calls() - before; n > lines/5 {
		t.Errorf("%d writes for %d lines", n, lines)
	}
}
