package limit

import "sync"

// Shares is what is in use of a budget that holders share. Each may have as much of it as is free besides, so that
// whoever takes all that it gets leaves something for the next: half of the budget is what one has at most. The zero
// value is ready, and all methods may be called at once from anywhere.
type Shares[K comparable] struct {
	mu   sync.Mutex // guards what follows
	used int64
	of   map[K]int64
}

// Take gives a holder n more of a budget of so much, which is without a bound where that is 0. Where it does not, it
// says how much the holder has, and all have.
func (s *Shares[K]) Take(who K, n, budget int64) (has, used int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if has = s.of[who]; budget > 0 && has+n > budget-s.used-n {
		return has, s.used, false
	}
	if s.of == nil {
		s.of = map[K]int64{}
	}
	s.used += n
	s.of[who] += n
	return s.of[who], s.used, true
}

// Give takes back what a holder has no more.
func (s *Shares[K]) Give(who K, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if left := s.of[who] - n; left > 0 {
		s.of[who] = left
	} else {
		delete(s.of, who)
	}
}

// Used is how much all have.
func (s *Shares[K]) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
