package limit

import (
	"testing"
	"time"
)

// TestQuiet tells of many refusals once a minute, and of one at once after the clock was set back.
func TestQuiet(t *testing.T) {
	q := Quiet{Every: time.Minute}
	at := time.Now()
	for i, c := range []struct {
		after time.Duration
		n     int
		tell  bool
	}{
		{0, 1, true}, {time.Second, 0, false}, {59 * time.Second, 0, false}, {61 * time.Second, 3, true},
		{0, 1, true},
	} {
		if n, tell := q.Tell(at.Add(c.after)); n != c.n || tell != c.tell {
			t.Errorf("%d: %d, %v", i, n, tell)
		}
	}
}
