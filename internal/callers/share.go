package callers

import (
	"sync/atomic"

	"berth/internal/fail"
	"berth/internal/limit"
)

// share is a budget that clients share, by process.
type share struct {
	budget  limit.Budget
	held    limit.Shares[int32]
	refused atomic.Int64
}

func newShare(b limit.Budget) *share { return &share{budget: b} }

// take gives a process n more, or says why not.
func (s *share) take(pid int32, n int64) error {
	has, used, ok := s.held.Take(pid, n, s.budget.Limit)
	if ok {
		return nil
	}
	s.refused.Add(1)
	return fail.About(fail.Detail{}, "process %d has %s of %d in use: %w", pid, s.budget.Amount(has), used,
		s.budget.Exceeded())
}

// give takes back what a process has no more.
func (s *share) give(pid int32, n int64) { s.held.Give(pid, n) }

func (s *share) refusals() (limit string, n int) { return s.budget.Name, int(s.refused.Load()) }

// inUse returns the budget with what is in use of it.
func (s *share) inUse() limit.Budget { return s.budget.With(s.held.Used()) }
