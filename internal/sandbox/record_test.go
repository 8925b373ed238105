package sandbox

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestFailureAgain counts the failures of an undo, since the first, and keeps a text of any length short.
func TestFailureAgain(t *testing.T) {
	var f *Failure
	begun := time.Now()
	first := f.Again(errors.New("first"))
	second := first.Again(errors.New(strings.Repeat("x", 1<<20)))
	if first.Tries != 1 || first.Error != "first" || first.Since.Before(begun) {
		t.Errorf("%+v", first)
	}
	if second.Tries != 2 || !second.Since.Equal(first.Since) || len(second.Error) > 4<<10 {
		t.Errorf("%d tries since %v, and %d bytes", second.Tries, second.Since, len(second.Error))
	}
}
