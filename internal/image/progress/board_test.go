package progress

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// only is the one pull of a board.
func only(t *testing.T, b *Board, now time.Time) Pull {
	t.Helper()
	all := b.List(now)
	if len(all) != 1 {
		t.Fatalf("%d pulls are on the board: %v", len(all), all)
	}
	return all[0]
}

// TestBoardFollowsAPull follows a pull of three layers from its reference to its end.
func TestBoardFollowsAPull(t *testing.T) {
	var b Board
	now := time.Unix(1000, 0)
	e := b.Enter(About{Reference: "a:1", Namespace: "default", Pod: "web", Began: now})
	if p := only(t, &b, now); p.Phase != Resolving || p.Reference != "a:1" || p.Pod != "web" || p.Total != 0 {
		t.Errorf("at its begin it is %+v", p)
	}
	say := func(layer, phase string, done, total int64, host string) {
		e.note(Event{Layer: digest.Digest(layer), Phase: phase, Done: done, Total: total, Host: host}, now)
	}
	for _, step := range []struct {
		say         func()
		phase       string
		done, total int64
		hosts       []string
	}{
		{func() { say("1", Waiting, 0, 100, ""); say("2", Waiting, 0, 100, ""); say("3", Waiting, 0, 100, "") },
			Waiting, 0, 300, nil},
		{func() { say("1", Exists, 100, 100, "") }, Waiting, 100, 300, nil},
		{func() { say("2", Downloading, 0, 100, "a:1"); say("2", Downloading, 40, 100, "a:1") },
			Downloading, 140, 300, []string{"a:1"}},
		{func() { say("2", Downloading, 50, 100, "b:1") }, Downloading, 150, 300, []string{"b:1"}},
		{func() { say("2", Done, 100, 100, "") }, Waiting, 200, 300, []string{"b:1"}},
		{func() { say("3", Proving, 10, 100, "a:1") }, Proving, 210, 300, []string{"a:1"}},
		{func() { say("3", Done, 100, 100, "") }, Finalizing, 300, 300, []string{"a:1", "b:1"}},
		{func() { e.note(Event{Phase: Finalizing}, now) }, Finalizing, 300, 300, []string{"a:1", "b:1"}},
	} {
		step.say()
		p := only(t, &b, now)
		sums := p.Done == step.done && p.Total == step.total
		if p.Phase != step.phase || !sums || !slices.Equal(p.Hosts(), step.hosts) {
			t.Errorf("it is %s, %d of %d, from %v; want %+v", p.Phase, p.Done, p.Total, p.Hosts(), step)
		}
	}
	e.Leave()
	e.Leave()
	if all := b.List(now); len(all) != 0 {
		t.Errorf("after its end it is there: %v", all)
	}
}

// TestBoardRate wants the bytes of the last seconds, nothing of what another pull had fetched before, and none of a
// layer that stands still.
func TestBoardRate(t *testing.T) {
	var b Board
	now := time.Unix(1000, 0)
	e := b.Enter(About{Began: now})
	done := int64(50 << 20) // of a layer that is joined
	load := func() { e.note(Event{Layer: "1", Phase: Downloading, Done: done, Total: 1 << 30}, now) }
	load()
	if r := only(t, &b, now).Rate; r != 0 {
		t.Errorf("a layer that is joined comes at %d", r)
	}
	run := func(d time.Duration, rate int64) {
		for range d / (100 * time.Millisecond) {
			now, done = now.Add(100*time.Millisecond), done+rate/10
			load()
		}
	}
	near := func(what string, want int64) {
		t.Helper()
		if r := only(t, &b, now).Rate; r < want*8/10 || r > want*12/10 {
			t.Errorf("%s it comes at %d, want %d", what, r, want)
		}
	}
	run(time.Second, 1_000_000)
	near("after a second", 1_000_000)
	run(10*time.Second, 200_000)
	near("after it became slower", 200_000)
	now = now.Add(2 * time.Second)
	near("after it stood still for two seconds", 100_000)
	now = now.Add(3 * time.Second)
	near("after it stood still for long", 0)
	done = 0 // another host has to send it anew
	load()
	run(time.Second, 500_000)
	near("from another host", 500_000)
}

// TestBoardWaitsForNobody lists while thousands of pulls come, go on and go, one of them with a caller that hears
// nothing.
func TestBoardWaitsForNobody(t *testing.T) {
	var b Board
	stuck, goOn := b.Enter(About{Reference: "stuck"}), make(chan struct{})
	r := stuck.Reporter(func(Event) { <-goOn })
	r.Report(Event{Layer: "1", Phase: Downloading, Done: 1, Total: 9})
	r.Report(Event{Layer: "1", Phase: Downloading, Done: 7, Total: 9})
	var all sync.WaitGroup
	for n := range 10_000 {
		all.Go(func() {
			e := b.Enter(About{Reference: fmt.Sprint(n)})
			defer e.Leave()
			p := e.Reporter(nil)
			defer p.Close()
			for done := range int64(5) {
				p.Report(Event{Layer: "1", Phase: Downloading, Done: done, Total: 9})
			}
			if n%500 == 0 {
				b.List(time.Now())
			}
		})
	}
	all.Wait()
	if p := only(t, &b, time.Now()); p.Reference != "stuck" || p.Done != 7 {
		t.Errorf("left is %+v", p)
	}
	close(goOn)
	r.Close()
}
