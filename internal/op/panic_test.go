package op

import (
	"context"
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
