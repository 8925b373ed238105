package monitor

import (
	"testing"
	"time"
)

// TestGather has writers of all speeds, and counts how often their stream is read and for how long they wait for it.
func TestGather(t *testing.T) {
	for name, c := range map[string]struct {
		holds  int
		each   int // bytes at once
		every  time.Duration
		takes  int           // at most, in the second second
		blocks time.Duration // at most, in the second second
	}{
		"a line now and then":            {pipeHolds, 100, 10 * time.Millisecond, 101, 0},
		"a line every 0.1 ms":            {pipeHolds, 100, 100 * time.Microsecond, 260, 0},
		"a page every 1 ms":              {pipeHolds, 4 << 10, time.Millisecond, 260, 0},
		"a page every 0.1 ms":            {pipeHolds, 4 << 10, 100 * time.Microsecond, 10001, 0},
		"a page every 0.2 ms":            {pipeHolds, 4 << 10, 200 * time.Microsecond, 1300, 0},
		"a page every 10 µs":             {pipeHolds, 4 << 10, 10 * time.Microsecond, 1 << 30, 10 * time.Millisecond},
		"a terminal's line every 0.1 ms": {terminalHolds, 100, 100 * time.Microsecond, 1000, 0},
		"a terminal's flood":             {terminalHolds, 1000, 2 * time.Microsecond, 1 << 30, 100 * time.Millisecond},
		"half a pipe every 10 ms":        {pipeHolds, 32 << 10, 10 * time.Millisecond, 101, 0},
	} {
		t.Run(name, func(t *testing.T) {
			takes, blocked := simulate(c.holds, c.each, c.every)
			if takes > c.takes || blocked > c.blocks {
				t.Errorf("it was read %d times in a second, and its writer waited for %v", takes, blocked)
			}
		})
	}
}

// simulate has a writer write so many bytes every so often for two seconds into a stream that is read at once but
// for the pauses, which are long at first, and says what happened in the second one.
func simulate(holds, each int, every time.Duration) (takes int, blocked time.Duration) {
	g := gather{holds: holds, since: time.Unix(0, 0), pause: gatherMost}
	now, writes, held := time.Unix(0, 0), time.Unix(0, 0), 0
	for end := now.Add(2 * time.Second); now.Before(end); {
		for !writes.After(now) {
			if held+each > holds { // the writer waits until the reader comes
				if now.After(time.Unix(1, 0)) {
					blocked += now.Sub(writes)
				}
				writes = now
				break
			}
			held += each
			writes = writes.Add(every)
		}
		if held == 0 {
			now = writes
			continue
		}
		if now.After(time.Unix(1, 0)) {
			takes++
		}
		n := held
		held = 0
		now = now.Add(g.took(n, true, now) + time.Microsecond)
	}
	return takes, blocked
}

// TestGatherEnds wants a stream that does not flow any more to be read at once again.
func TestGatherEnds(t *testing.T) {
	g, now := gather{holds: pipeHolds, pause: gatherMost}, time.Unix(0, 0)
	for range 20 {
		now = now.Add(50 * time.Millisecond)
		g.took(10, true, now)
	}
	if g.pause > 0 {
		t.Errorf("it is left alone for %v", g.pause)
	}
}
