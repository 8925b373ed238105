package callers

import (
	"sync"

	"berth/internal/fail"
	"berth/internal/limit"
)

// share is a budget that clients share. Each may have as much of it as is free besides.
type share struct {
	mu     sync.Mutex // guards what follows
	budget limit.Budget
	used   int64
	of     map[int32]int64 // by process

	refused int
}

func newShare(b limit.Budget) *share { return &share{budget: b, of: map[int32]int64{}} }

// take gives a process n more, or says why not.
func (s *share) take(pid int32, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if has := s.of[pid]; s.budget.Limit > 0 && has+n > s.budget.Limit-s.used-n {
		s.refused++
		return fail.About(fail.Detail{}, "process %d has %s of %d in use: %w", pid, s.budget.Amount(has), s.used,
			s.budget.Exceeded())
	}
	s.used += n
	s.of[pid] += n
	return nil
}

// give takes back what a process has no more.
func (s *share) give(pid int32, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.of[pid] -= n; s.of[pid] <= 0 {
		delete(s.of, pid)
	}
}

func (s *share) refusals() (limit string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.Name, s.refused
}

// inUse returns the budget with what is in use of it.
func (s *share) inUse() limit.Budget {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.With(s.used)
}
