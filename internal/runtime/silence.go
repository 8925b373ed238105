package runtime

import (
	"sync"
	"time"
)

// silence is how long a pod's monitor has left unanswered what it was asked. It is counted in ticks of the daemon's own
// clock and not in time: while a virtual machine is paused, or the daemon does not run, no monitor could have answered.
type silence struct {
	watch func() // runs in a goroutine of its own while a silence lasts, until rest says so; nil runs nothing

	mu    sync.Mutex // guards what follows
	going bool       // watch runs
	since time.Time  // zero while the monitor answers
	ticks int
	held  string // what keeps the monitor from running on purpose
}

// begin notes that a monitor has not answered in time.
func (s *silence) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since, s.ticks, s.held = time.Now(), 0, ""
	}
	if s.watch != nil && !s.going {
		s.going = true
		go s.watch()
	}
}

// end notes that a monitor has answered.
func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

// rest ends the silence, which is watched no more.
func (s *silence) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going = !s.since.IsZero()
	return !s.going
}

// lasts says since when nothing was answered, the zero time where something was, and by what the monitor is held.
func (s *silence) lasts() (since time.Time, held string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.held
}

// tick counts one, and returns how many there were. A monitor that is held on purpose does not hang: it is not counted.
func (s *silence) tick(held string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held = held; held == "" {
		s.ticks++
	}
	return s.ticks
}
