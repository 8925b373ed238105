package monitor

import (
	"testing"
	"time"
)

// TestGather has writers of all speeds, and counts how often their stream is read and for how long they wait for it.
func TestGather(t *testing.T) {
	for name, c := range map[string]struct {
		each   int // bytes at once
		every  time.Duration
		takes  int           // at most, in the second second
		blocks time.Duration // at most, in the second second
	}{
		"a line now and then":     {100, 10 * time.Millisecond, 101, 0},
		"a line every 0.1 ms":     {100, 100 * time.Microsecond, 260, 0},
		"a page every 1 ms":       {4 << 10, time.Millisecond, 260, 0},
		"a page every 0.1 ms":     {4 << 10, 100 * time.Microsecond, 10001, 0},
		"a page every 0.2 ms":     {4 << 10, 200 * time.Microsecond, 1300, 0},
		"a page every 10 µs":      {4 << 10, 10 * time.Microsecond, 1 << 30, 10 * time.Millisecond},
		"half a pipe every 10 ms": {32 << 10, 10 * time.Millisecond, 101, 0},
	} {
		t.Run(name, func(t *testing.T) {
			takes, blocked := simulate(c.each, c.every)
			if takes > c.takes || blocked > c.blocks {
				t.Errorf("it was read %d times in a second, and its writer waited for %v", takes, blocked)
			}
		})
	}
}

// simulate has a writer write so many bytes every so often for two seconds into a pipe that is read at once but for the
// pauses, and says what happened in the second one.
func simulate(each int, every time.Duration) (takes int, blocked time.Duration) {
	const pipe = 64 << 10
	var g gather
	g.since = time.Unix(0, 0)
	now, writes, inPipe := time.Unix(0, 0), time.Unix(0, 0), 0
	for end := now.Add(2 * time.Second); now.Before(end); {
		for !writes.After(now) {
			if inPipe+each > pipe { // the writer waits until the reader comes
				if now.After(time.Unix(1, 0)) {
					blocked += now.Sub(writes)
				}
				writes = now
				break
			}
			inPipe += each
			writes = writes.Add(every)
		}
		if inPipe == 0 {
			now = writes
			continue
		}
		if now.After(time.Unix(1, 0)) {
			takes++
		}
		n := inPipe
		inPipe = 0
		now = now.Add(g.took(n, true, now) + time.Microsecond)
	}
	return takes, blocked
}

// TestGatherEnds wants a stream that does not flow any more to be read at once again.
func TestGatherEnds(t *testing.T) {
	g, now := gather{pause: gatherMost}, time.Unix(0, 0)
	for range 20 {
		now = now.Add(50 * time.Millisecond)
		g.took(10, true, now)
	}
	if g.pause > 0 {
		t.Errorf("it is left alone for %v", g.pause)
	}
}
