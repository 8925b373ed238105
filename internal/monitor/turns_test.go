package monitor

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	turns := newTurns(2)
	var done []func()
	for range 2 {
		end, err := turns.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, end)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errTimeout)
	defer cancel()
	if _, err := turns.take(ctx); !errors.Is(err, errTimeout) {
		t.Errorf("a third turn: %v", err)
	}
	for range 3 { // only the first time counts
		done[0]()
	}
	if len(turns) != 1 {
		t.Errorf("%d turns are taken", len(turns))
	}
	again, err := turns.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Those of runtimes that hang end.
	for range 2 {
		if _, err := turns.take(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	done[1]()
	again()
	if len(turns) != 2 {
		t.Errorf("%d turns are taken", len(turns))
	}
}
