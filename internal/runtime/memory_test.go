package runtime

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxPSS is what a pod's monitor may cost beside 19 others, in kB. Of that, about 110 kB are the shared program, which
// more of them share.
const maxPSS = 910

// TestMemory measures 20 monitors, each with one idle container whose log has been written to.
func TestMemory(t *testing.T) {
	if len(monitorFlags) > 0 {
		t.Skip("the race detector has a memory of its own")
	}
	const pods = 20
	var rigs []*rig
	for range pods {
		g := newQuietRig(t)
		rigs = append(rigs, g)
		ctr := g.run("echo on; sleep 1000")
		g.hasSaid(ctr, "on\n")
	}
	time.Sleep(3 * time.Second)
	var sum, dirty int
	for _, g := range rigs {
		sum += rollup(g, "Pss")
		dirty += rollup(g, "Anonymous")
	}
	t.Logf("PSS %d kB a pod, of which its own %d kB", sum/pods, dirty/pods)
	if sum/pods > maxPSS {
		t.Errorf("PSS is %d kB a pod, more than %d", sum/pods, maxPSS)
	}
	var all sync.WaitGroup
	for _, g := range rigs {
		all.Go(g.clear)
	}
	all.Wait()
}

// rollup is one line of what the kernel says of the memory of a pod's monitor, in kB.
func rollup(g *rig, name string) (kb int) {
	g.Helper()
	data := g.must(os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", g.monitor()))).([]byte)
	_, rest, _ := strings.Cut(string(data), "\n"+name+":")
	_, err := fmt.Sscan(rest, &kb)
	g.ok(err)
	return kb
}

// TestMemoryAfterExecs checks that probes, which a pod is asked for all its life, cost a monitor no more than what a
// collection takes once.
func TestMemoryAfterExecs(t *testing.T) {
	if len(monitorFlags) > 0 {
		t.Skip("the race detector has a memory of its own")
	}
	g := newRig(t)
	ctr := g.run("sleep 1000")
	g.exec(ctr, "true")
	before := rollup(g, "Anonymous")
	most := 0
	for i := range 96 {
		if _, code := g.exec(ctr, "exit 4"); code != 4 {
			t.Fatalf("exec %d: %d", i, code)
		}
		most = max(most, rollup(g, "Anonymous"))
	}
	time.Sleep(1500 * time.Millisecond)
	after := rollup(g, "Anonymous")
	t.Logf("its own memory: %d kB before, at most %d, %d after", before, most, after)
	if after > before+900 {
		t.Errorf("96 execs cost %d kB", after-before)
	}
}
