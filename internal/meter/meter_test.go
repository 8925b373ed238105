package meter

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/internal/sandbox"
	"berth/test/timeouts"
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

// TestRateAfterTheClockWasSetBack asks about what began an hour ahead of the clock: its rate is known a second after
// the first question.
func TestRateAfterTheClockWasSetBack(t *testing.T) {
	var s rates
	now := time.Now()
	ahead := now.Add(time.Hour)
	s.ask("a", ahead, now, time.Second)
	u, ok := s.ask("a", ahead, now.Add(time.Second), 3*time.Second/2)
	if !ok || u.NanoCores != uint64(time.Second/2) {
		t.Errorf("%d nanocores, %v", u.NanoCores, ok)
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

// told is what a meter has said through Reached.
type told struct {
	ctr          sandbox.ID
	reason, what string
}

// metered is a Meter of one pod, whose record a test may change; events has what it tells.
type metered struct {
	*Meter
	record sandbox.Record
	events []told
}

// open makes a Meter without anything else of the daemon, over layers in a directory of the test.
func open(t *testing.T, containers ...*sandbox.Container) *metered {
	t.Helper()
	m := &metered{record: sandbox.Record{ID: sandbox.NewID(), State: sandbox.Ready, Containers: containers}}
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	m.Meter = New(Config{
		Layout:     sandbox.Layout{Root: t.TempDir()},
		Records:    func(yield func(*sandbox.Record) bool) { yield(&m.record) },
		Cgroup:     func(*sandbox.Record) (string, error) { return "", errors.New("no cgroup") },
		Background: func(fn func(context.Context)) { work.Go(func() { fn(t.Context()) }) },
		Reached: func(_ *sandbox.Record, ctr sandbox.ID, reason, what string) {
			m.events = append(m.events, told{ctr, reason, what})
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return m
}

// upper makes the directory that a container writes to.
func (m *metered) upper(t *testing.T, ctr sandbox.ID) string {
	t.Helper()
	dir := filepath.Join(m.cfg.Layout.Writable(m.record.ID, ctr), "upper")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wait waits until cond holds.
func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for until := time.Now().Add(timeouts.For(30 * time.Second)); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited for: %s", what)
		}
	}
}

// TestUseWithoutACgroup asks about what has no cgroup that can be read: of a pod it is the sum of its containers, of a
// container nothing, and of one in its pod's sandbox nothing but the time.
func TestUseWithoutACgroup(t *testing.T) {
	ctr := &sandbox.Container{ID: "c", State: sandbox.Running, Cgroup: "/nowhere/of/berth"}
	m := open(t, ctr)
	if u, ok := m.Container(&m.record, ctr, cgroup.Everything); ok {
		t.Errorf("a container without a cgroup uses %+v", u)
	}
	parts := []Use{{}, {}}
	for i := range parts {
		parts[i].Memory.WorkingSet, parts[i].Tasks.Current = 1000, 3
	}
	u, ok := m.Pod(&m.record, cgroup.Everything, parts)
	if !ok || u.Memory.WorkingSet != 2000 || u.Tasks.Current != 6 || m.PodCgroup(&m.record) != "" {
		t.Errorf("the pod uses %+v, %v", u, ok)
	}
	m.record.Init.PID = 1
	ctr.Process = m.record.Init
	if u, ok := m.Container(&m.record, ctr, cgroup.Everything); !ok || u.At.IsZero() || u.CPU.Known {
		t.Errorf("a container in a sandbox uses %+v, %v", u, ok)
	}
	m.record.State = sandbox.Stopped
	if _, ok := m.Pod(&m.record, cgroup.Everything, parts); ok {
		t.Error("a stopped pod uses something")
	}
}
