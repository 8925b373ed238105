package op

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/test/timeouts"
)

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// TestBoardShowsWhatHoldsALane has a step hang, then the undo behind it, and others wait for the lane.
func TestBoardShowsWhatHoldsALane(t *testing.T) {
	var b Board
	base, cancel := context.WithCancel(b.Under(context.Background()))
	defer cancel()
	lane := Lane{Of: Owner{Pod: "p", Container: "c"}}
	hold, holdUndo, failed := make(chan struct{}), make(chan struct{}), errors.New("no")
	p := Plan{Name: "pod", Steps: []Step{
		{Name: "beside", Beside: true, Do: func(context.Context) error { <-hold; return nil }},
		{Name: "network", Do: func(context.Context) error { <-hold; return failed },
			Undo: func(context.Context) error { <-holdUndo; return nil }},
	}}
	run := func(ctx context.Context) error {
		err := p.Forward(ctx)
		return errors.Join(err, p.Backward(Trace(base, ctx)))
	}
	ended := make(chan error, 4)
	for range 2 {
		go func() { ended <- lane.Do(base, context.Background(), Op{Kind: "create", Run: run}) }()
	}
	one := func() Activity {
		if all := b.Activities(); len(all) == 1 {
			return all[0]
		}
		return Activity{}
	}
	eventually(t, "both callers and both steps", func() bool { a := one(); return a.Callers == 2 && len(a.Steps) == 2 })
	if a := one(); a.Of != lane.Of || a.Kind != "create" || a.Since.IsZero() || a.Ended {
		t.Errorf("got %+v", a)
	}
	for _, s := range one().Steps {
		if s.Plan != "pod" || s.Undo || s.Since.IsZero() || s.Step != "network" && s.Step != "beside" {
			t.Errorf("a step is %+v", s)
		}
	}
	gone, leave := context.WithCancel(context.Background())
	go func() { ended <- lane.Do(base, gone, Op{Kind: "list"}) }()
	stop := Op{Kind: "stop", Ends: func(string) bool { return true }, Run: func(context.Context) error { return nil }}
	go func() { ended <- lane.Do(base, context.Background(), stop) }()
	eventually(t, "the queue", func() bool {
		a := one()
		return a.Queued["list"] == 1 && a.Queued["stop"] == 1 && a.Ended
	})
	leave()
	eventually(t, "a queue without the caller that left", func() bool { return len(one().Queued) == 1 })
	close(hold)
	eventually(t, "the undo", func() bool {
		a := one()
		return len(a.Steps) == 1 && a.Steps[0].Undo && a.Steps[0].Step == "network"
	})
	close(holdUndo)
	for range 4 {
		<-ended
	}
	if all := b.Activities(); len(all) != 0 {
		t.Errorf("of idle lanes the board says %+v", all)
	}
}

// TestLaneWithoutABoard has nobody who asks.
func TestLaneWithoutABoard(t *testing.T) {
	var lane Lane
	if err := lane.Do(context.Background(), context.Background(), Op{Kind: "x", Run: func(ctx context.Context) error {
		return Plan{Name: "p", Steps: []Step{{Name: "s", Do: func(context.Context) error { return nil }}}}.Forward(ctx)
	}}); err != nil {
		t.Fatal(err)
	}
}
