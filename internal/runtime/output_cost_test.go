package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

// monitorBefore, in the environment, names the program of a monitor of an earlier release.
const monitorBefore = "BERTH_TEST_BEFORE"

// costRounds and costMost: the lower quartile of so many rounds, since other work only adds, may be so much more than
// that of the other monitor.
const costRounds, costMost = 12, 1.05

// TestOutputCost measures what output costs a monitor in processor time and memory, turn about with another monitor.
func TestOutputCost(t *testing.T) {
	before := os.Getenv(monitorBefore)
	if before == "" {
		t.Skip(monitorBefore + " names no monitor to compare with")
	}
	only := os.Getenv("ONLY")
	for _, f := range []struct{ name, script string }{
		{"a pipe full at once", "i=0; while [ $i -lt 300 ]; do cat /tmp/long; i=$((i+1)); done"},
		{"the same, in lines of a few bytes", "i=0; while [ $i -lt 20 ]; do cat /tmp/short; i=$((i+1)); done"},
		{"line by line", "i=0; while [ $i -lt 150000 ]; do echo line number $i; i=$((i+1)); done"},
		{"a line now and then", "i=0; while [ $i -lt 2000 ]; do echo line number $i; i=$((i+1)); usleep 1000; done"},
	} {
		if only != "" && only != f.name {
			continue
		}
		monitors := []string{before, host.monitor}
		var times, sizes [2][]float64
		for range costRounds {
			for i, program := range monitors {
				cpu, kb := flood(t, program, f.script)
				times[i], sizes[i] = append(times[i], cpu.Seconds()*1000), append(sizes[i], float64(kb))
			}
		}
		ratio := quartile(times[1]) / quartile(times[0])
		t.Logf("%s: %.1f ms, before %.1f ms, %.2f times; PSS %.0f kB, before %.0f kB", f.name,
			quartile(times[1]), quartile(times[0]), ratio, quartile(sizes[1]), quartile(sizes[0]))
		if ratio > costMost {
			t.Errorf("%s: %.2f times what it cost before", f.name, ratio)
		}
	}
}

func quartile(list []float64) float64 {
	sort.Float64s(list)
	return list[len(list)/4]
}

// flood runs a container and returns what its output took of the monitor's processor time, and the monitor's memory
// after it.
func flood(t *testing.T, program, script string) (cpu time.Duration, pss int) {
	old := host.monitor
	host.monitor = program
	defer func() { host.monitor = old }()
	g := newQuietRig(t)
	defer g.clear()
	ctr := g.run("seq 100000 >/tmp/short; head -c 999 /dev/zero | tr '\\0' x >/tmp/one; echo >>/tmp/one; "+
		"i=0; while [ $i -lt 500 ]; do cat /tmp/one; i=$((i+1)); done >/tmp/long; read go; "+script,
		func(c *Create) { c.Stdin = true })
	began := processorTime(t, g)
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	for end := time.Now().Add(timeouts.For(2 * time.Minute)); ; time.Sleep(20 * time.Millisecond) {
		g.mu.Lock()
		done := len(g.exits[ctr]) > 0
		g.mu.Unlock()
		if done {
			pss = rollup(g, "Pss")
			return processorTime(t, g) - began, pss
		}
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
}

// processorTime is what a pod's monitor has used.
func processorTime(t *testing.T, g *rig) (sum time.Duration) {
	t.Helper()
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", g.monitor()))
	for _, path := range threads {
		var ns int64
		data := g.must(os.ReadFile(path)).([]byte)
		g.must(fmt.Sscan(strings.Fields(string(data))[0], &ns))
		sum += time.Duration(ns)
	}
	return sum
}
