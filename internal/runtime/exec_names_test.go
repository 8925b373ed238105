package runtime

import (
	"regexp"
	"testing"
	"time"
)

// execGroup is the name of the cgroup in which an exec runs a script, which leaves what it likes.
func (g *rig) execGroup(ctr, script string) string {
	g.Helper()
	out, code := g.exec(ctr, "cat /proc/self/cgroup\n"+script)
	name := regexp.MustCompile(`exec-[0-9]+`).FindString(out)
	if code != 0 || name == "" {
		g.Fatalf("code %d, and no cgroup of an exec in %q", code, out)
	}
	return name
}

// TestCgroupsOfExecsAreNamedAgain has execs follow each other: a cgroup that is gone gives its name to the next one, so
// that who watches cgroups, as a kubelet's cAdvisor does, does not see a new one for each probe. One in which something
// lives keeps its name.
func TestCgroupsOfExecsAreNamedAgain(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	const first, second = "exec-1", "exec-2"
	const left = "while [ ! -e /tmp/end ]; do usleep 10000; done >/dev/null 2>&1 &"
	want := func(when, want, script string) {
		t.Helper()
		if got := g.execGroup(ctr, script); got != want {
			t.Fatalf("%s: it is called %s, wanted %s", when, got, want)
		}
	}
	for range 3 {
		want("after one that has ended", first, "")
	}
	res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("sleep 5002"), Timeout: 300 * time.Millisecond})
	if err != nil || !res.TimedOut {
		t.Fatalf("an exec past its time: %+v, %v", res, err)
	}
	want("after one that was killed", first, left)
	want("beside what another has left", second, "")
	g.exec(ctr, ": > /tmp/end")
	g.within(5*time.Second, "the name is free when that has ended", func() bool {
		return g.execGroup(ctr, "") == first
	})
	g.exec(ctr, "rm /tmp/end")
	want("after that", first, left)
	g.killMonitor()
	want("under the next monitor, which leaves it alone", second, "")
	g.exec(ctr, ": > /tmp/end")
	g.within(5*time.Second, "the name is free when that has ended, under the next monitor, too", func() bool {
		return g.execGroup(ctr, "") == first
	})
}
