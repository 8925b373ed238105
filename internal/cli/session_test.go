package cli

import (
	"errors"
	"io"
	"testing"
	"time"
)

// TestRestOfTheOutput has a reader take longer for what has come than output may be missing, and a container whose
// output is held open by a process that says nothing.
func TestRestOfTheOutput(t *testing.T) {
	const grace = 100 * time.Millisecond
	s, end := &session{done: make(chan error, 1)}, errors.New("the end")
	r, w := io.Pipe()
	go func() {
		_, _ = s.shown.through(w).Write([]byte("x")) // which ends when it is read
		s.done <- end
	}()
	go func() {
		time.Sleep(5 * grace)
		_, _ = r.Read(make([]byte, 1))
	}()
	for !s.shown.writing.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := s.rest(grace); err != end {
		t.Errorf("the rest was not waited for: %v", err)
	}
	began := time.Now()
	if err := s.rest(grace); err != nil || time.Since(began) < grace {
		t.Errorf("a silent process: %v after %v", err, time.Since(began))
	}
}
