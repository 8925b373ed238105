package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// limitedTo starts a container whose log is limited.
func (g *rig) limitedTo(rate, burst int64, script string, change ...func(*Create)) string {
	g.Helper()
	ctr := g.create(script, change...)
	log := g.log(ctr)
	log.Rate, log.Burst = rate, burst
	g.ok(g.Start(g.Context(), g.pod, ctr, log, deadline))
	return ctr
}

// tally is what a limited log has.
type tally struct {
	lines, bytes   int64 // whole lines of the container
	dropped, lost  int64 // lines and bytes that the log says were dropped
	notices, extra int64 // how many notices, and bytes of the log that are theirs
}

// tally reads a log of lines that end in a dot, whose second word is their number: none is there twice, or late.
func (g *rig) tally(ctr string) (sum tally) {
	g.Helper()
	next, pending := map[string]int{}, map[string]string{}
	for line := range strings.Lines(g.logged(ctr)) {
		e := entries(g.T, line)
		if len(e) != 1 {
			g.Fatalf("not an entry: %.200q", line)
		}
		stream, text := e[0].stream, e[0].text
		if strings.HasPrefix(text, "[berth:") {
			var lines, size, rate int64
			g.must(fmt.Sscanf(text, "[berth: %d lines (%d bytes) were dropped: the log is limited to %d bytes a second]",
				&lines, &size, &rate))
			sum.dropped, sum.lost, sum.notices = sum.dropped+lines, sum.lost+size, sum.notices+1
			sum.extra += int64(len(line))
			continue
		}
		pending[stream] += text
		if e[0].tag == "P" {
			continue
		}
		text = strings.TrimSuffix(pending[stream], "\r")
		pending[stream] = ""
		if !strings.HasSuffix(text, ".") { // its end was dropped
			sum.extra += int64(len(line))
			continue
		}
		var name string
		var n int
		g.must(fmt.Sscanf(text, "%s %d", &name, &n))
		if n < next[stream] {
			g.Fatalf("line %d of %s is there twice, or late", n, stream)
		}
		next[stream] = n + 1
		sum.lines, sum.bytes = sum.lines+1, sum.bytes+int64(len(text))+1
	}
	return sum
}

// floodLines are the lines of flooding.
const floodLines = 500_000

// flooding is a script that writes 50 MB as fast as it can, once it is let go.
const flooding = "awk 'BEGIN { for (i = 0; i < 500000; i++) printf \"line %d %090d.\\n\", i, 0 }' >/tmp/all; " +
	"wc -c </tmp/all >/tmp/size; read go; cat /tmp/all; exit 3"

// TestLogRate has a container write 50 MB to a log that takes 100 kB a second: it is through at once, and the log has
// what it may have, and says what it has not.
func TestLogRate(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			g := newQuietRig(t)
			defer g.clear()
			const rate, burst = 100_000, 200_000
			script := flooding
			if terminal {
				script = strings.Replace(flooding, "read go", "while ! [ -e /tmp/go ]; do usleep 10000; done", 1)
			}
			var told Dropped
			g.cfg.OnDropped = func(_, _ string, d Dropped) {
				g.mu.Lock()
				defer g.mu.Unlock()
				told.Lines, told.Bytes = told.Lines+d.Lines, told.Bytes+d.Bytes
			}
			ctr := g.limitedTo(rate, burst, script, func(c *Create) { c.Stdin, c.Terminal = !terminal, terminal })
			var size string
			g.within(30*time.Second, "the lines are made", func() bool {
				size, _ = g.exec(ctr, "cat /tmp/size")
				return strings.TrimSpace(size) != "" && !strings.Contains(size, "cat:")
			})
			began := time.Now()
			if terminal {
				g.exec(ctr, "touch /tmp/go")
			} else {
				g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
			}
			if e := g.exit(ctr); !honest(e, 3) {
				t.Errorf("exit %+v", e)
			}
			took := time.Since(began)
			sum, log := g.tally(ctr), int64(len(g.logged(ctr)))
			t.Logf("%v; %+v, the log has %d bytes; told %+v", took, sum, log, told)
			if held := time.Duration(floodLines*100/rate) * time.Second; took > held/4 {
				t.Errorf("the container was held up for %v; at the rate of its log it were %v", took, held)
			}
			if most := int64(burst+rate*(took.Seconds()+1)) + sum.extra; log > most || sum.lines < burst/200 {
				t.Errorf("the log has %d bytes, at most %d may be there", log, most)
			}
			if sum.lines+sum.dropped != floodLines {
				t.Errorf("%d lines are there and %d were dropped, of %d", sum.lines, sum.dropped, floodLines)
			}
			if told != (Dropped{Lines: sum.dropped, Bytes: sum.lost}) {
				t.Errorf("the daemon was told of %+v", told)
			}
			var all int64
			g.must(fmt.Sscan(size, &all))
			if !terminal && sum.bytes+sum.lost != all {
				t.Errorf("%d bytes are there and %d were dropped, of %d", sum.bytes, sum.lost, all)
			}
		})
	}
}

// TestLogRateIsBackAtOnce checks that the notice comes without another line, and that a log goes on afterwards.
func TestLogRateIsBackAtOnce(t *testing.T) {
	g := newRig(t)
	ctr := g.limitedTo(50_000, 64<<10, "i=0; while [ $i -lt 20000 ]; do echo line $i.; i=$((i+1)); done; "+
		"read go; echo last; sleep 1000", func(c *Create) { c.Stdin = true })
	g.within(15*time.Second, "the log says what was dropped", func() bool {
		sum := g.tally(ctr)
		return sum.dropped > 0 && sum.lines+sum.dropped == 20000
	})
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	g.hasSaid(ctr, "last\n")
}

// TestLogRateOfLongLines has lines of which only the beginning fits, and one that never ends: each is there whole, or
// dropped.
func TestLogRateOfLongLines(t *testing.T) {
	g := newRig(t)
	const lines = 600
	ctr := g.limitedTo(100_000, 32<<10, "head -c 40000 /dev/zero | tr '\\0' x >/tmp/x; long=$(cat /tmp/x); i=0; "+
		"while [ $i -lt 600 ]; do case $i in *3) echo line $i $long.;; *57) printf 'line %d ' $i; usleep 300000; echo x.;; "+
		"*) echo line $i.; echo err $i. >&2;; esac; i=$((i+1)); usleep 5000; done; printf 'line 600 '; "+
		"cat /tmp/x /tmp/x /tmp/x /tmp/x /tmp/x; exit 3")
	if e := g.exit(ctr); !honest(e, 3) {
		t.Errorf("exit %+v", e)
	}
	sum := g.tally(ctr)
	t.Logf("%+v", sum)
	if want := int64(lines + lines*9/10 - 6 + 1); sum.dropped == 0 || sum.lines+sum.dropped != want {
		t.Errorf("%d lines are there and %d were dropped, of %d", sum.lines, sum.dropped, want)
	}
}

// TestLogRateOfKilledMonitors kills monitors while lines are dropped: nothing is there twice, and the counts add up.
func TestLogRateOfKilledMonitors(t *testing.T) {
	g := newRig(t)
	var told Dropped
	g.cfg.OnDropped = func(_, _ string, d Dropped) {
		g.mu.Lock()
		defer g.mu.Unlock()
		told.Lines, told.Bytes = told.Lines+d.Lines, told.Bytes+d.Bytes
	}
	const lines, rate, burst = 60_000, 30_000, 64 << 10
	began := time.Now()
	ctr := g.limitedTo(rate, burst, numbers(lines))
	kills := g.strike(ctr, func(int) {})
	took := time.Since(began)
	sum, log := g.tally(ctr), int64(len(g.logged(ctr)))
	t.Logf("%d kills, %v; %+v, %d bytes; told %+v", kills, took, sum, log, told)
	if sum.dropped == 0 || sum.lines+sum.dropped != 2*lines {
		t.Errorf("%d lines are there and %d were dropped, of %d", sum.lines, sum.dropped, 2*lines)
	}
	if most := int64(burst+rate*(took.Seconds()+1)) + sum.extra; log > most {
		t.Errorf("the log has %d bytes, at most %d may be there", log, most)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// What a monitor has not told when it is killed after the output's end is told by nobody.
	if told.Lines == 0 || told.Lines > sum.dropped || told.Bytes > sum.lost {
		t.Errorf("the daemon was told of %+v", told)
	}
}

// TestLogRateReachesTheAttached gives an attached client what is dropped of the log.
func TestLogRateReachesTheAttached(t *testing.T) {
	g := newRig(t)
	ctr := g.create("i=0; while [ $i -lt 5000 ]; do echo line $i.; i=$((i+1)); case $i in *00) usleep 5000;; esac; done")
	var got syncBuffer
	ready := make(chan struct{})
	go func() { _ = g.Attach(t.Context(), g.pod, ctr, Attach{Stdout: &got, Ready: func() { close(ready) }}) }()
	<-ready
	log := g.log(ctr)
	log.Rate, log.Burst = 1024, 32<<10
	g.ok(g.Start(t.Context(), g.pod, ctr, log, deadline))
	g.exit(ctr)
	g.within(5*time.Second, "the client has all", func() bool { return strings.Count(got.String(), "\n") == 5000 })
	if sum := g.tally(ctr); sum.dropped == 0 || sum.lines+sum.dropped != 5000 {
		t.Errorf("%+v", sum)
	}
}
