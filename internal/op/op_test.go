package op

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/test/timeouts"
)

type trail struct {
	mu   sync.Mutex
	seen []string
}

func (t *trail) step(name string, fail error) Step {
	note := func(way string, err error) func(context.Context) error {
		return func(context.Context) error {
			t.mu.Lock()
			t.seen = append(t.seen, way+name)
			t.mu.Unlock()
			return err
		}
	}
	return Step{Name: name, Do: note("+", fail), Undo: note("-", nil)}
}

func TestForwardStopsAtTheFirstFailure(t *testing.T) {
	var tr trail
	boom := errors.New("boom")
	p := Plan{Name: "make", Steps: []Step{tr.step("a", nil), tr.step("b", boom), tr.step("c", nil)}}
	err := p.Forward(context.Background())
	var se *StepError
	if !errors.As(err, &se) || se.Step != "b" || !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if err := p.Backward(context.Background()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"+a", "+b", "-c", "-b", "-a"}; !slices.Equal(tr.seen, want) {
		t.Fatalf("got %v, want %v", tr.seen, want)
	}
}

func TestBackwardStopsWhereUndoFails(t *testing.T) {
	var tr trail
	stuck := tr.step("b", nil)
	stuck.Undo = func(context.Context) error { return errors.New("stuck") }
	p := Plan{Name: "make", Steps: []Step{tr.step("a", nil), stuck, tr.step("c", nil)}}
	err := p.Backward(context.Background())
	if err == nil || !strings.Contains(err.Error(), "make: undo step b: stuck") {
		t.Fatalf("got %v", err)
	}
	if want := []string{"-c"}; !slices.Equal(tr.seen, want) {
		t.Fatalf("got %v, want %v", tr.seen, want)
	}
	tr.seen = nil
	if err := p.BackwardTo(context.Background(), "b"); err != nil || !slices.Equal(tr.seen, []string{"-c"}) {
		t.Fatalf("BackwardTo: %v %v", err, tr.seen)
	}
}

func TestBesideIsJoined(t *testing.T) {
	release := make(chan struct{})
	var slow atomic.Bool
	p := Plan{Name: "make", Steps: []Step{
		{Name: "slow", Beside: true, Do: func(context.Context) error { <-release; slow.Store(true); return nil }},
		{Name: "quick", Do: func(context.Context) error { close(release); return nil }},
		{Name: "after", Joins: true, Do: func(context.Context) error {
			if !slow.Load() {
				return errors.New("ran before what it joins")
			}
			return nil
		}},
	}}
	if err := p.Forward(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestBesideFailureEndsTheRestAndIsTheError(t *testing.T) {
	boom, begun := errors.New("boom"), make(chan struct{})
	var ended atomic.Bool
	p := Plan{Name: "make", Steps: []Step{
		{Name: "bad", Beside: true, Do: func(context.Context) error { <-begun; return boom }},
		{Name: "long", Do: func(ctx context.Context) error {
			close(begun) // a step does not begin any more once one has failed
			<-ctx.Done()
			ended.Store(true)
			return ctx.Err()
		}},
	}}
	err := p.Forward(context.Background())
	var se *StepError
	if !errors.Is(err, boom) || !errors.As(err, &se) || se.Step != "bad" || !ended.Load() {
		t.Fatalf("got %v, ended %v", err, ended.Load())
	}
}

func TestFailureWaitsForWhatRunsBeside(t *testing.T) {
	var done atomic.Bool
	p := Plan{Name: "make", Steps: []Step{
		{Name: "slow", Beside: true, Do: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(20 * time.Millisecond)
			done.Store(true)
			return ctx.Err()
		}},
		{Name: "bad", Do: func(context.Context) error { return errors.New("boom") }},
	}}
	if err := p.Forward(context.Background()); err == nil || !strings.Contains(err.Error(), "step bad: boom") {
		t.Fatalf("got %v", err)
	}
	if !done.Load() {
		t.Fatal("Forward returned while a step still ran")
	}
}

func TestFailureBeforeAJoin(t *testing.T) {
	boom := errors.New("boom")
	p := Plan{Name: "make", Steps: []Step{
		{Name: "beside", Beside: true, Do: func(context.Context) error { return nil }},
		{Name: "bad", Do: func(context.Context) error { return boom }},
		{Name: "joins", Joins: true, Do: func(context.Context) error { t.Error("ran after a failure"); return nil }},
	}}
	if err := p.Forward(context.Background()); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
}

func TestDeadlineNamesItself(t *testing.T) {
	p := Plan{
		Name: "make", Steps: []Step{{Name: "hang", Deadline: 10 * time.Millisecond, Do: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}}}
	err := p.Forward(context.Background())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done after 10ms") {
		t.Fatalf("got %v", err)
	}
}

func TestSameOperationIsJoined(t *testing.T) {
	var l Lane
	var runs atomic.Int32
	started, release := make(chan struct{}), make(chan struct{})
	o := Op{Kind: "create", Key: "k", Run: func(context.Context) error {
		runs.Add(1)
		close(started)
		<-release
		return errors.New("the one answer")
	}}
	errs := make(chan error, 5)
	go func() { errs <- l.Do(t.Context(), t.Context(), o) }()
	<-started
	for range 4 {
		go func() { errs <- l.Do(t.Context(), t.Context(), o) }()
	}
	for l.waiters() < 5 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	for range 5 {
		if err := <-errs; err == nil || err.Error() != "the one answer" {
			t.Fatalf("got %v", err)
		}
	}
	if runs.Load() != 1 {
		t.Fatalf("ran %d times", runs.Load())
	}
}

func (l *Lane) waiters() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == nil {
		return 0
	}
	return l.cur.waiters
}

func TestCallerGivesUpWorkGoesOnAndIsJoinedAgain(t *testing.T) {
	var l Lane
	release := make(chan struct{})
	o := Op{Kind: "create", Key: "k", Abandon: time.Hour, Run: func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
	impatient, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	var we *WaitError
	if err := l.Do(t.Context(), impatient, o); !errors.As(err, &we) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	again := make(chan error)
	go func() { again <- l.Do(t.Context(), t.Context(), o) }()
	for l.waiters() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	if err := <-again; err != nil {
		t.Fatalf("second call: %v", err)
	}
}

func TestAbandonedWorkIsEnded(t *testing.T) {
	var l Lane
	ended := make(chan error, 1)
	o := Op{Kind: "create", Abandon: 10 * time.Millisecond, Run: func(ctx context.Context) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}}
	impatient, cancel := context.WithCancel(t.Context())
	cancel2 := time.AfterFunc(5*time.Millisecond, cancel)
	defer cancel2.Stop()
	_ = l.Do(t.Context(), impatient, o)
	if err := <-ended; !errors.Is(err, ErrAbandoned) {
		t.Fatalf("got %v", err)
	}
}

func TestEndsAndQueues(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("ends=", ends), func(t *testing.T) {
			var l Lane
			started, release := make(chan struct{}), make(chan struct{})
			first := make(chan error, 1)
			go func() {
				first <- l.Do(t.Context(), t.Context(), Op{Kind: "create", Run: func(ctx context.Context) error {
					close(started)
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-release:
						return nil
					}
				}})
			}()
			<-started
			second := make(chan error, 1)
			go func() {
				second <- l.Do(t.Context(), t.Context(), Op{Kind: "stop", Ends: func(k string) bool {
					return ends && k == "create"
				},
					Run: func(context.Context) error { return nil }})
			}()
			if !ends {
				select {
				case <-second:
					t.Fatal("did not wait")
				case <-time.After(10 * time.Millisecond):
				}
				close(release)
			}
			var se *SupersededError
			if err := <-first; ends != (errors.As(err, &se) && se.By == "stop") {
				t.Fatalf("first: %v", err)
			}
			if err := <-second; err != nil {
				t.Fatalf("second: %v", err)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{time.Second, 10 * time.Second}
	for n, want := range map[int]time.Duration{1: 1, 2: 2, 4: 8, 5: 10, 60: 10} {
		if got := b.After(n); got != want*time.Second {
			t.Errorf("After(%d) = %v", n, got)
		}
	}
}

// Who asks again while an abandoned operation is being undone gets a new one, not the news that nobody waited.
func TestAskingAgainDoesNotJoinWhatIsEnding(t *testing.T) {
	var l Lane
	ending, undone := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	o := Op{Kind: "create", Abandon: time.Millisecond, Run: func(ctx context.Context) error {
		if runs.Add(1) > 1 {
			return nil
		}
		<-ctx.Done()
		close(ending)
		<-undone
		return context.Cause(ctx)
	}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // also a caller that has gone already: what it announced must be ended some time
	if err := l.Do(t.Context(), ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-ending:
	case <-time.After(timeouts.For(time.Minute)):
		t.Fatal("the operation of a caller that had gone did not run, or was not ended")
	}
	again := make(chan error, 1)
	go func() { again <- l.Do(t.Context(), t.Context(), o) }()
	time.Sleep(10 * time.Millisecond)
	close(undone)
	if err := <-again; err != nil || runs.Load() != 2 {
		t.Errorf("got %v after %d runs", err, runs.Load())
	}
}
