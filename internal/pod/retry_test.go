package pod

import (
	"sync"
	"testing"
	"time"
)

// Of deadlines that are brought forward at once the earliest counts.
func TestHurryTakesTheEarliest(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for range 50000 {
		h := newHurry()
		var both sync.WaitGroup
		both.Go(func() { h.by(late) })
		h.by(early)
		both.Wait()
		if at := <-h.brought; !at.Equal(early) {
			t.Fatal("the later deadline counts")
		}
	}
}
