package pod

import (
	"context"
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

// TestStopThatWasNotLetInLeavesNoDeadline ends a container whose earlier stop or removal came from a client that had
// gone: it did not begin, and must not shorten what comes after it.
func TestStopThatWasNotLetInLeavesNoDeadline(t *testing.T) {
	b := open(t)
	_, ctr := started(t, b)
	b.drv.deaf = true
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, call := range map[string]func() error{
		"stop":   func() error { return b.StopContainer(gone, ctr, 0) },
		"remove": func() error { return b.RemoveContainer(gone, ctr) },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s of a client that has gone: %v", name, err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- b.StopContainer(t.Context(), ctr, time.Hour) }()
	wait(t, "the stop signal", func() bool { b.drv.mu.Lock(); defer b.drv.mu.Unlock(); return len(b.drv.signals) == 1 })
	select {
	case err := <-ended:
		t.Fatalf("the container was killed at once: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := b.RemoveContainer(t.Context(), ctr); err != nil {
		t.Error(err)
	}
	<-ended
}
