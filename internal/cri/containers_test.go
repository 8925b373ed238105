package cri

import (
	"math"
	"testing"
	"time"
)

// TestSeconds wants a timeout that does not fit into nanoseconds to be a long one.
func TestSeconds(t *testing.T) {
	for n, want := range map[int64]time.Duration{
		math.MinInt64: 0, -1: 0, 0: 0, 30: 30 * time.Second,
		10_000_000_000: longest, math.MaxInt64/int64(time.Second) + 1: longest, math.MaxInt64: longest,
	} {
		if got := seconds(n); got != want {
			t.Errorf("%d s are %v, wanted %v", n, got, want)
		}
	}
}
