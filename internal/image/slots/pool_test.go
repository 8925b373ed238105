package slots

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTenThousandWait has as many transfers wait at once, most of which leave before it is their turn. No more than
// there are slots go on at once, and nothing is left.
func TestTenThousandWait(t *testing.T) {
	const all, most = 10_000, 4
	p := New(most, 64)
	first := p.Transfer("first")
	if _, err := first.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Resize(1)
	gone := errors.New("gone")
	leaving, leave := context.WithCancelCause(t.Context())
	var work sync.WaitGroup
	var at, peak, done atomic.Int64
	for i := range all {
		work.Go(func() {
			ctx := t.Context()
			if i%10 > 0 {
				ctx = leaving
			}
			one := p.Transfer(fmt.Sprint("host", i%7))
			defer one.End()
			if _, err := one.Begin(ctx); err != nil {
				if !errors.Is(err, gone) {
					t.Error(err)
				}
				return
			}
			peak.Store(max(peak.Load(), at.Add(1)))
			done.Add(1)
			at.Add(-1)
		})
	}
	leave(gone)
	first.End()
	p.Resize(most)
	work.Wait()
	if peak.Load() > most || done.Load() < all/10 {
		t.Errorf("%d went on at once, %d at all", peak.Load(), done.Load())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) != 0 || len(p.holders) != 0 || p.open != 0 || p.waiting != 0 {
		t.Errorf("left are %d hosts, %d slots, %d open, %d waiting", len(p.hosts), len(p.holders), p.open, p.waiting)
	}
}

// TestRead reads through a transfer that has a slot, that has none, and whose context ends while it waits for one.
func TestRead(t *testing.T) {
	s := newSim(t, 1, 64)
	a := s.pool.Transfer("a")
	ctx, err := a.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReader(strings.Repeat("x", mib))
	buf := make([]byte, 64*kib)
	if n, err := a.Read(ctx, text, buf); n != len(buf) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	a.Await()
	b := s.enter(1, "b", steady(mib))[0]
	s.run(time.Second)
	if !b.slot || a.slot {
		t.Fatal("who waits does not get the slot of who does not use it")
	}
	if n, err := a.Read(ctx, text, buf); n != len(buf) || err != nil { // what it saved up
		t.Errorf("%d, %v", n, err)
	}
	ended := errors.New("ended")
	waiting, end := context.WithCancelCause(ctx)
	end(ended)
	if n, err := a.Read(waiting, text, buf); n != 0 || !errors.Is(err, ended) {
		t.Errorf("%d, %v", n, err)
	}
	if n := a.Received(); n != 2*int64(len(buf)) {
		t.Errorf("%d bytes", n)
	}
	a.End()
	if ctx.Err() == nil {
		t.Error("its context goes on after its end")
	}
	s.empty()
}
