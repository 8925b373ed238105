package op

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestInTurn has many come at once: they take turns, and what hangs keeps the others not for long.
func TestInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const turns, all = 2, 20
		slots := make(chan struct{}, turns)
		var now, most atomic.Int32
		var g sync.WaitGroup
		for range all {
			g.Go(func() {
				_ = InTurn(t.Context(), slots, time.Hour, func(context.Context) error {
					n := now.Add(1)
					for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
					}
					time.Sleep(time.Second)
					now.Add(-1)
					return nil
				})
			})
		}
		g.Wait()
		if most.Load() != turns || len(slots) != 0 {
			t.Errorf("%d at once, %d slots not given back", most.Load(), len(slots))
		}
		hang := make(chan struct{})
		for range turns {
			g.Go(func() {
				_ = InTurn(t.Context(), slots, time.Second, func(context.Context) error { <-hang; return nil })
			})
		}
		synctest.Wait()
		began, failed := time.Now(), errors.New("no")
		err := InTurn(t.Context(), slots, time.Hour, func(context.Context) error { return failed })
		if took := time.Since(began); !errors.Is(err, failed) || took != time.Second {
			t.Errorf("behind what hangs: %v after %v", err, took)
		}
		close(hang)
		g.Wait()
		if len(slots) != 0 {
			t.Errorf("%d slots not given back", len(slots))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err = InTurn(ended, make(chan struct{}), time.Hour, func(context.Context) error {
			t.Error("begun after the daemon's end")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after the daemon's end: %v", err)
		}
	})
}
