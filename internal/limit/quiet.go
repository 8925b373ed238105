package limit

import (
	"sync"
	"time"
)

// Quiet says which of many refusals alike is worth a line of the log: one in each Every. A client may cause thousands a
// second.
type Quiet struct {
	Every time.Duration

	mu   sync.Mutex // guards what follows
	last time.Time
	kept int
}

// Tell counts a refusal, and says whether to tell of it and how many there were since the last that was told, with it.
func (q *Quiet) Tell(now time.Time) (n int, tell bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kept++
	if since := now.Sub(q.last); !q.last.IsZero() && since >= 0 && since < q.Every {
		return 0, false
	}
	n = q.kept
	q.last, q.kept = now, 0
	return n, true
}
