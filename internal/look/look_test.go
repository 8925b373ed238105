package look

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/test/timeouts"
)

// asks are calls that wait until they are let go, and how many there are.
type asks struct {
	letGo   chan struct{}
	waiting atomic.Int32
}

func (a *asks) hang() (int, error) {
	a.waiting.Add(1)
	defer a.waiting.Add(-1)
	<-a.letGo
	return 1, nil
}

// TestAnswers returns what was asked for, and its error.
func TestAnswers(t *testing.T) {
	d, broken := NewDisk(), errors.New("broken")
	if got, err := Now(d, func() (string, error) { return "here", nil }); got != "here" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Within(t.Context(), d, func() (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestHangs has a disk hang while ten thousand reads come, some of them at once: few calls wait for the disk, all reads
// are answered, and they see the disk again when it goes on.
func TestHangs(t *testing.T) {
	d, a := NewDisk(), asks{letGo: make(chan struct{})}
	began := time.Now()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for range 100 {
				if _, err := Now(d, a.hang); !errors.Is(err, ErrHangs) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > timeouts.For(10*time.Second) {
		t.Errorf("ten thousand reads took %v", took)
	}
	if n := a.waiting.Load(); n == 0 || n > AtOnce {
		t.Errorf("%d calls wait for the disk", n)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("no more time"))
	defer cancel()
	if _, err := Within(ctx, d, a.hang); !errors.Is(err, context.Cause(ctx)) {
		t.Errorf("one with a deadline of its own: %v", err)
	}
	close(a.letGo)
	for until := time.Now().Add(timeouts.For(10 * time.Second)); d.late.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d looks are still thought to hang", d.late.Load())
		}
	}
	if _, err := Now(d, a.hang); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// TestLateCounts ends looks at the moment when their callers leave: none is counted as hanging for ever.
func TestLateCounts(t *testing.T) {
	d := NewDisk()
	for i := range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%100)*time.Microsecond)
		_, _ = Within(ctx, d, func() (int, error) {
			time.Sleep(50 * time.Microsecond)
			return 0, nil
		})
		cancel()
	}
	for range AtOnce { // all have ended when their slots are free
		d.slots <- struct{}{}
	}
	if n := d.late.Load(); n != 0 {
		t.Errorf("%d looks are thought to hang", n)
	}
}
