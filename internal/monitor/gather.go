package monitor

import "time"

// A program that writes each line by itself has its monitor run for each, which costs both more processor time than
// the line does. So a stream that was emptied again and again is left alone for a moment, in which more gathers in
// its pipe: for so short that the pipe is not full by then, and so its writer does not wait.
const (
	gatherTime  = 100 * time.Millisecond // is how long a stream is watched before that changes
	gatherOften = 50                     // times was it emptied in that time, when it is left alone for the first time
	gatherRare  = 5                      // times, when it is not any more
	gatherMost  = 5 * time.Millisecond
	gatherLeast = 500 * time.Microsecond // less is not worth a timer
	gatherPart  = 4                      // of what the stream holds, one part in so many is to gather at most
)

// What a stream holds, in bytes, before its writer waits: pipe(7), and N_TTY_BUF_SIZE of the kernel, of which a read
// gets one less.
const (
	pipeHolds     = 64 << 10
	terminalHolds = 4<<10 - 1
)

// gather measures how a stream flows.
type gather struct {
	holds   int // bytes, pipeHolds or terminalHolds
	since   time.Time
	emptied int
	bytes   int
	pause   time.Duration
}

// took counts bytes that were read from a stream, and whether it was empty afterwards. It returns for how long not to
// read it.
func (g *gather) took(n int, empty bool, now time.Time) time.Duration {
	g.bytes += n
	if !empty {
		return 0
	}
	g.emptied++
	if gone := now.Sub(g.since); gone >= gatherTime {
		g.judge(gone)
		g.since, g.emptied, g.bytes = now, 0, 0
	}
	return g.pause
}

// judge sets the pause, by how much was read since it was set last.
func (g *gather) judge(gone time.Duration) {
	often := int(time.Duration(g.emptied) * gatherTime / gone)
	switch {
	case g.pause > 0 && g.bytes/g.emptied > g.holds-g.holds/gatherPart: // the writer may have waited
		g.pause /= 2
	case g.pause > 0 && often >= gatherRare:
		return
	case g.pause == 0 && often >= gatherOften:
		g.pause = min(gatherMost, time.Duration(float64(gone)*float64(g.holds/gatherPart)/float64(g.bytes)))
	default:
		g.pause = 0
	}
	if g.pause < gatherLeast {
		g.pause = 0
	}
}
