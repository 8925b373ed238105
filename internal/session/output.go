package session

import (
	"sync/atomic"

	"berth/internal/limit"
)

// maxOutput is how much of the output of an ExecSync is kept, both streams together, in bytes. The rest is read and
// thrown away.
func maxOutput() int { return int(limit.ExecOutput.Limit) }

// Output is what an exec left behind.
type Output struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// fit makes both streams fit into one answer, and returns how many bytes were cut off for that. The smaller one is cut
// only when it takes more than half.
func (o *Output) fit() (lost int64) {
	cut := func(b *[]byte, to int) {
		lost += int64(max(len(*b)-to, 0))
		*b = (*b)[:min(len(*b), to)]
	}
	cut(&o.Stdout, max(maxOutput()/2, maxOutput()-len(o.Stderr)))
	cut(&o.Stderr, maxOutput()-len(o.Stdout))
	return lost
}

// outputs counts what all execs under way keep. The zero value is ready.
type outputs struct{ used atomic.Int64 }

// take returns how much of n there is room for.
func (o *outputs) take(n int64) int64 {
	for {
		used := o.used.Load()
		n = max(min(n, limit.ExecOutputs.Limit-used), 0)
		if o.used.CompareAndSwap(used, used+n) {
			return n
		}
	}
}

func (o *outputs) give(n int64) { o.used.Add(-n) }

// ownOutput is what a stream of an exec keeps however much others do.
const ownOutput = 64 << 10

// capture keeps what one stream of an exec brings, as far as it fits into an answer, and as all execs have room.
type capture struct {
	of    *outputs
	taken int64 // of it
	data  []byte
	lost  int64 // bytes thrown away
}

// release gives back what was taken of the room that all share.
func (c *capture) release() {
	c.of.give(c.taken)
	c.taken = 0
}

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	kept := min(len(p), maxOutput()-len(c.data))
	if c.lost > 0 {
		kept = 0 // what comes behind a gap would look as if it belonged there
	}
	if own := max(ownOutput-len(c.data), 0); kept > own {
		got := c.of.take(int64(kept - own))
		c.taken += got
		kept = own + int(got)
	}
	c.data = append(c.data, p[:kept]...)
	c.lost += int64(len(p) - kept)
	return len(p), nil
}
