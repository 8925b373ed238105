package pod

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Of deadlines that are brought forward at once the earliest counts.
func TestHurryTakesTheEarliest(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for range 50000 {
		h := newStopDeadline()
		var both sync.WaitGroup
		both.Go(func() { h.by(late) })
		h.by(early)
		both.Wait()
		if at := <-h.brought; !at.Equal(early) {
			t.Fatal("the later deadline counts")
		}
	}
}

// An undo that fails at the moment at which the tries in the background have succeeded is tried again, too.
func TestFailureBesideASuccessIsRetried(t *testing.T) {
	b := open(t)
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Catalog.find(id)
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int32
	var again func() error
	again = func() error {
		if tries.Add(1) == 1 {
			p.stuck(errors.New("another caller's try failed"), again)
		}
		return nil
	}
	p.stuck(errors.New("the first try failed"), again)
	wait(t, "the second try", func() bool { return tries.Load() == 2 })
}
