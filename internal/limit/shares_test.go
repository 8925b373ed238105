package limit

import "testing"

// TestShares counts what three holders get of one budget, and what is left of them.
func TestShares(t *testing.T) {
	var s Shares[string]
	s.Give("nobody", 0) // who never had any
	all := func(who string, budget int64) (n int64) {
		for {
			if _, _, ok := s.Take(who, 1, budget); !ok || n == 1000 {
				return n
			}
			n++
		}
	}
	if a, b, c := all("a", 120), all("b", 120), all("c", 120); a != 60 || b != 30 || c != 15 {
		t.Errorf("they got %d, %d, %d", a, b, c)
	}
	if has, used, ok := s.Take("a", 1, 120); has != 60 || used != 105 || ok {
		t.Errorf("one more: %d, %d, %v", has, used, ok)
	}
	for who, n := range map[string]int64{"a": 60, "b": 30, "c": 15} {
		s.Give(who, n)
	}
	if s.Used() != 0 || len(s.of) != 0 {
		t.Errorf("%d are left, %v", s.Used(), s.of)
	}
	if n := all("a", 0); n != 1000 {
		t.Errorf("without a bound one got %d", n)
	}
}
