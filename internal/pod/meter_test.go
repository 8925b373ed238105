package pod

import (
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/internal/sandbox"
)

// ask is one question about something that has used so much by then.
func (s *rates) ask(id sandbox.ID, began, at time.Time, used time.Duration) (Use, bool) {
	u := Use{Usage: cgroup.Usage{At: at, CPU: cgroup.CPU{Known: true, Usage: uint64(used)}}}
	s.rate(id, began, &u)
	return u, u.Rated
}

func TestRates(t *testing.T) {
	var s rates
	t0 := time.Now()
	long := t0.Add(-time.Hour)
	at := func(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }
	for _, q := range []struct {
		name  string
		id    sandbox.ID
		began time.Time
		at    float64
		used  time.Duration
		want  float64 // cores; negative where none is known
	}{
		{"first question about an old one", "a", long, 0, time.Minute, -1},
		{"an instant later", "a", long, 0.05, time.Minute, -1},
		{"a second later", "a", long, 1, time.Minute + 500*time.Millisecond, 0.5},
		{"over all that there is", "a", long, 4, time.Minute + 500*time.Millisecond, 0.125},
		{"over the window, not the last second", "a", long, 6, time.Minute + 3*time.Second, 0.5},
		{"as kubelets ask", "a", long, 16, time.Minute + 13*time.Second, 1},
		{"somebody else in between", "a", long, 16.3, time.Minute + 13*time.Second + 300*time.Millisecond, 1},
		{"counted from anew", "a", long, 20, time.Second, -1},
		{"and on", "a", long, 30, 3 * time.Second, 0.2},
		{"nobody asked for long", "a", long, 500, 100 * time.Second, -1},
		{"one that began lately", "b", at(500), 502, 3 * time.Second, 1.5},
		{"one that began just now", "c", at(502), 502.01, time.Millisecond, -1},
	} {
		u, ok := s.ask(q.id, q.began, at(q.at), q.used)
		if got := float64(u.NanoCores) / 1e9; ok != (q.want >= 0) || ok && (got < q.want-0.001 || got > q.want+0.001) {
			t.Errorf("%s: %v, %v; wanted %v", q.name, got, ok, q.want)
		}
	}
}

// What is asked about for an hour every second keeps few samples, and what is not asked about any more none.
func TestRatesKeepLittle(t *testing.T) {
	var s rates
	t0 := time.Now()
	for i := range 3600 {
		s.ask("a", t0, t0.Add(time.Duration(i)*time.Second), time.Duration(i)*time.Second)
		s.ask(sandbox.ID(rune('b'+i%20)), t0, t0.Add(time.Duration(i)*time.Second), 0)
		if n := len(s.of["a"]); n > 8 {
			t.Fatalf("%d samples", n)
		}
	}
	s.ask("z", t0, t0.Add(3*time.Hour), 0)
	if len(s.of) > 1 {
		t.Errorf("%d are remembered", len(s.of))
	}
}
