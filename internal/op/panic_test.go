package op

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestPanicFailsItsOperationAlone has an operation panic: its callers get an error, and the lane goes on.
func TestPanicFailsItsOperationAlone(t *testing.T) {
	var l Lane
	var record *struct{ name string }
	for range 2 {
		bad := func(context.Context) error { _ = record.name; return nil }
		err := l.Do(t.Context(), t.Context(), Op{Kind: "bad", Run: bad})
		if !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "bad: panic: ") {
			t.Errorf("got %v", err)
		}
	}
	good := func(context.Context) error { return nil }
	if err := l.Do(t.Context(), t.Context(), Op{Kind: "good", Run: good}); err != nil {
		t.Error(err)
	}
}

// TestPanicWithoutALog has the log be taken by nobody: who waits for the operation is told all the same.
func TestPanicWithoutALog(t *testing.T) {
	was := slog.Default()
	stuck := make(chan struct{})
	slog.SetDefault(slog.New(slog.NewTextHandler(until(stuck), nil)))
	t.Cleanup(func() {
		close(stuck)
		slog.SetDefault(was)
	})
	var l Lane
	bad := func(context.Context) error { panic("boom") }
	err := l.Do(t.Context(), t.Context(), Op{Kind: "bad", Run: bad})
	if !errdefs.IsInternal(err) {
		t.Errorf("got %v", err)
	}
}

// TestPanicBeside has a step panic that runs beside the others: the plan fails, and the step that runs meanwhile ends.
func TestPanicBeside(t *testing.T) {
	var record *struct{ name string }
	ended := false
	p := Plan{Name: "make", Steps: []Step{
		{Name: "bad", Beside: true, Do: func(context.Context) error { _ = record.name; return nil }},
		{Name: "slow", Do: func(ctx context.Context) error { <-ctx.Done(); ended = true; return ctx.Err() }},
	}}
	err := p.Forward(t.Context())
	if !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "make: step bad: panic: ") || !ended {
		t.Errorf("got %v, and the other step ended %v", err, ended)
	}
}

// until is a writer that waits until it is closed.
type until chan struct{}

func (u until) Write(p []byte) (int, error) {
	<-u
	return len(p), nil
}
