package slots

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	// step is how far the time of a simulation goes at once.
	step = 20 * time.Millisecond
)

// sim has transfers go on in a time of its own.
type sim struct {
	*testing.T
	pool   *Pool
	now    time.Time
	timers []*simTimer
	all    []*simTransfer
}

type simTimer struct {
	at time.Time
	f  func()
}

func (s *sim) Now() time.Time { return s.now }

func (s *sim) AfterFunc(d time.Duration, f func()) func() bool {
	t := &simTimer{s.now.Add(d), f}
	s.timers = append(s.timers, t)
	return func() bool {
		i := slices.Index(s.timers, t)
		if i >= 0 {
			s.timers = slices.Delete(s.timers, i, i+1)
		}
		return i >= 0
	}
}

func newSim(t *testing.T, most, slow int) *sim {
	s := &sim{T: t, now: time.Unix(1000, 0)}
	s.pool = newPool(most, slow, s)
	return s
}

// simTransfer receives what its host has sent since it began, and works on it for a while.
type simTransfer struct {
	*Transfer
	sent  func(age time.Duration) float64 // bytes
	work  time.Duration                   // for 64 KiB
	size  int64
	began time.Time
	busy  time.Time // until when it works
	over  bool
	cause error
}

// enter has n transfers from a host wait for their turn.
func (s *sim) enter(n int, host string, sent func(time.Duration) float64) []*simTransfer {
	var out []*simTransfer
	for range n {
		t := &simTransfer{Transfer: s.pool.Transfer(host), sent: sent}
		s.pool.enter(t.Transfer, func(cause error) { t.cause = cause })
		out = append(out, t)
	}
	s.all = append(s.all, out...)
	return out
}

// steady sends so many bytes a second.
func steady(rate float64) func(time.Duration) float64 {
	return func(age time.Duration) float64 { return rate * age.Seconds() }
}

// run lets time pass.
func (s *sim) run(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(step)
		for i := 0; i < len(s.timers); i++ {
			if t := s.timers[i]; !t.at.After(s.now) {
				s.timers = slices.Delete(s.timers, i, i+1)
				i = -1
				t.f()
			}
		}
		for _, t := range s.all {
			s.step(t)
		}
		s.check()
	}
}

func (s *sim) step(t *simTransfer) {
	if t.over || t.cause != nil || t.opened.IsZero() || t.host == nil || s.now.Before(t.busy) {
		return
	}
	if t.began.IsZero() {
		t.began = s.now
	}
	if s.pool.beforeRead(t.Transfer) > 0 {
		return
	}
	left := t.sent(s.now.Sub(t.began)) - float64(t.bytes)
	if t.size > 0 {
		left = min(left, float64(t.size-t.bytes))
	}
	if n := int(min(left, 128*kib)); n > 0 {
		s.pool.afterRead(t.Transfer, n)
		t.busy = s.now.Add(time.Duration(float64(t.work) * float64(n) / (64 * kib)))
		if t.work == 0 {
			s.pool.beforeRead(t.Transfer) // at once: from here on it waits
		}
	}
	if t.over = t.size > 0 && t.bytes >= t.size; t.over {
		t.End()
	}
}

// check wants the sums to agree with what the transfers have.
func (s *sim) check() {
	s.Helper()
	p, open, slots := s.pool, 0, 0
	for name, h := range p.hosts {
		if len(h.open) > p.most {
			s.Fatalf("%s has %d transfers open of %d", name, len(h.open), p.most)
		}
		open, slots = open+len(h.open), slots+h.slots
	}
	if open != p.open || slots != len(p.holders) || slots > p.most || open-slots > p.slow {
		s.Fatalf("%d open of %d, %d slots of %d of %d", open, p.open, slots, len(p.holders), p.most)
	}
}

func received(of []*simTransfer) (sum int64) {
	for _, t := range of {
		sum += t.bytes
	}
	return sum
}

func begun(of []*simTransfer) (n int) {
	for _, t := range of {
		if !t.opened.IsZero() {
			n++
		}
	}
	return n
}

// slowWays are the ways in which a host holds up its transfers.
var slowWays = map[string]func(time.Duration) float64{
	"sends nothing":                    steady(0),
	"just over the stall limit":        steady(140),
	"just under the floor":             steady(Floor - kib),
	"just over the floor":              steady(Floor + kib),
	"just under what counts as slow":   steady(presumed/muchMore - kib),
	"a burst every five seconds":       func(age time.Duration) float64 { return float64(age/(5*time.Second)+1) * mib },
	"a burst whenever it is looked at": func(age time.Duration) float64 { return float64(age/window+1) * Floor / 2 },
	"fast, then nothing":               func(age time.Duration) float64 { return min(3*mib, 6*mib*age.Seconds()) },
	"asks to wait, then is fast": func(age time.Duration) float64 {
		return max(0, (age-12*time.Second).Seconds()) * mib
	},
}

// TestTenSlowHosts has a host that is fast begin beside ten that are slow, in every way there is. It gets its slots at
// once, keeps them, and gets two thirds of what it would get alone at least.
func TestTenSlowHosts(t *testing.T) {
	for name, sent := range slowWays {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 8, 64)
			for i := range 10 {
				s.enter(4, fmt.Sprint("slow", i), sent)
			}
			s.run(7200 * time.Millisecond)
			fast := s.enter(4, "fast", steady(4*mib))
			if sent(time.Minute) > 60*Floor { // it makes use of what it gets, and may just have begun
				s.run(turn)
			}
			if n := begun(fast); n != 4 {
				t.Errorf("%d of 4 have begun at once", n)
			}
			s.run(10 * time.Second)
			if got, alone := received(fast), int64(4*10*4*mib); got < alone*2/3 {
				t.Errorf("it got %d bytes of %d", got, alone)
			}
			for _, slow := range s.all[:40] {
				if slow.cause != nil {
					t.Fatal(slow.cause)
				}
			}
			if n := begun(s.all[:40]); n < 32 {
				t.Errorf("%d of the slow ones have begun", n)
			}
		})
	}
}

// TestSlowHostsThatComeLater has the hosts that are slow begin all the time, and the one that is fast has one layer
// after another: as many of them arrive as without the others, or nearly.
func TestSlowHostsThatComeLater(t *testing.T) {
	alone := layersInTurn(newSim(t, 8, 64), nil)
	for name, sent := range slowWays {
		t.Run(name, func(t *testing.T) {
			if done := layersInTurn(newSim(t, 8, 64), sent); done < alone*2/3 {
				t.Errorf("%d layers are there, alone there would be %d", done, alone)
			}
		})
	}
}

// layersInTurn has the host that is fast fetch layers, four at once, for 15 seconds.
func layersInTurn(s *sim, slow func(time.Duration) float64) (done int) {
	var fast []*simTransfer
	for i := range 150 {
		for host := 0; slow != nil && i%5 == 0 && host < 3; host++ {
			s.enter(1, fmt.Sprint("slow", (3*i/5+host)%10), slow)
		}
		for len(fast) < done+4 {
			one := s.enter(1, "fast", steady(4*mib))
			one[0].size = 2 * mib
			fast = append(fast, one...)
		}
		s.run(100 * time.Millisecond)
		done = 0
		for _, f := range fast {
			if f.over {
				done++
			}
		}
	}
	return done
}

// TestHonestSlowHost pulls over a link of 20 KB/s beside hosts that are fast: it gets all that its link has.
func TestHonestSlowHost(t *testing.T) {
	s := newSim(t, 8, 64)
	for i := range 10 {
		s.enter(8, fmt.Sprint("fast", i), steady(5*mib))
	}
	slow := s.enter(1, "slow", steady(20_000))
	s.run(3 * time.Second) // a turn, at most
	if begun(slow) != 1 {
		t.Fatal("it has not begun")
	}
	had := slow[0].bytes
	s.run(60 * time.Second)
	if got := slow[0].bytes - had; got < 60*20_000-64*kib || slow[0].cause != nil {
		t.Errorf("it got %d bytes of %d, %v", got, 60*20_000, slow[0].cause)
	}
}

// TestFastHostsShare has more hosts than slots, all fast: each gets its part.
func TestFastHostsShare(t *testing.T) {
	s := newSim(t, 8, 64)
	var of [][]*simTransfer
	for i := range 20 {
		of = append(of, s.enter(4, fmt.Sprint("host", i), steady(3*mib)))
	}
	s.run(60 * time.Second)
	var all int64
	for _, one := range of {
		all += received(one)
	}
	for i, one := range of {
		if got, part := received(one), all/20; got < part/2 || got > part*2 {
			t.Errorf("host %d got %d bytes, its part is %d", i, got, part)
		}
	}
	if most := int64(8 * 60 * 3 * mib); all < most*3/4 {
		t.Errorf("all together got %d bytes of %d", all, most)
	}
}

// TestOneHost has all slots for one host, and one after the other begins in order.
func TestOneHost(t *testing.T) {
	s := newSim(t, 3, 64)
	all := s.enter(12, "one", steady(6*mib))
	for _, t := range all {
		t.size = mib
	}
	if n := begun(all); n != 3 {
		t.Errorf("%d have begun", n)
	}
	for !all[len(all)-1].over {
		s.run(step)
		for i := range all[1:] {
			if all[i].opened.IsZero() && !all[i+1].opened.IsZero() {
				t.Fatalf("%d begins before %d", i+1, i)
			}
		}
	}
	s.empty()
}

// empty wants nothing to be left.
func (s *sim) empty() {
	s.Helper()
	for _, t := range s.all {
		t.End()
		t.End()
	}
	p := s.pool
	if len(p.hosts) != 0 || len(p.holders) != 0 || p.open != 0 || p.waiting != 0 {
		s.Errorf("left are %d hosts, %d slots, %d open, %d waiting", len(p.hosts), len(p.holders), p.open, p.waiting)
	}
}

// TestCrowd has more slow transfers than may go on without a slot. For a new one of another host the slowest of the
// host that has the most ends, none of a host that has few, and none that has just begun.
func TestCrowd(t *testing.T) {
	s := newSim(t, 8, 20)
	few := s.enter(2, "few", steady(100))
	s.run(heldLong)
	many := s.enter(8, "many", steady(5*kib))
	s.run(window)
	some := s.enter(7, "some", steady(kib))
	s.run(heldLong)
	more := s.enter(7, "more", steady(kib))
	s.run(window)
	more = append(more, s.enter(4, "yet more", steady(kib))...)
	s.run(2 * window)
	if s.pool.open != 8+20 {
		t.Fatalf("%d are open", s.pool.open)
	}
	many[3].sent = steady(0)
	s.run(2 * window)
	fast := s.enter(1, "fast", steady(5*mib))
	s.run(2 * window)
	if begun(fast) != 1 {
		t.Error("the new one has not begun")
	}
	for _, one := range slices.Concat(few, many, some, more) {
		if one.cause != nil && one.host == nil && !slices.Contains(many, one) {
			t.Errorf("one of %s ended: %v", one.name, one.cause)
		}
	}
	if many[3].cause == nil {
		t.Error("the slowest goes on")
	} else {
		t.Log(many[3].cause)
	}
	if got := fast[0].bytes; got == 0 {
		t.Error("the new one got nothing")
	}
	s.empty()
}

// TestManyHostsThatDrip has new hosts come without end. What they take is bounded, and a host that is fast
// begins when its turn comes.
func TestManyHostsThatDrip(t *testing.T) {
	s := newSim(t, 8, 64)
	for i := range 100 {
		s.enter(4, fmt.Sprint("slow", i), steady(kib))
		s.run(100 * time.Millisecond)
	}
	fast := s.enter(4, "fast", steady(4*mib))
	for begun(fast) == 0 { // behind some 30 hosts, of which each has its chance
		if s.run(time.Second); s.now.After(time.Unix(1060, 0)) {
			t.Fatal("no layer of a host that is fast has begun")
		}
	}
	s.run(time.Second)
	if got := received(fast); got < 3*mib {
		t.Errorf("it got %d bytes in a second", got)
	}
	s.empty()
}

// TestWorkNeedsASlot has transfers of few bytes that make much work. Without a slot they get next to nothing done.
func TestWorkNeedsASlot(t *testing.T) {
	s := newSim(t, 2, 64)
	var bombs []*simTransfer
	for i := range 8 {
		bombs = append(bombs, s.enter(1, fmt.Sprint("bomb", i), steady(64*mib))...)
	}
	for _, b := range bombs {
		b.work = time.Second / 4 // for 64 KiB
	}
	s.run(60 * time.Second)
	if n := begun(bombs); n != len(bombs) {
		t.Errorf("%d of %d have begun", n, len(bombs))
	}
	if got := received(bombs) / (64 * kib) / 4; got > 2*60+6*60/4 {
		t.Errorf("%d seconds of work were done in 60, with two slots", got)
	}
}

func TestResize(t *testing.T) {
	s := newSim(t, 2, 64)
	all := s.enter(10, "host", steady(mib))
	s.pool.Resize(5)
	if n := begun(all); n != 5 {
		t.Errorf("%d have begun", n)
	}
	s.pool.Resize(1)
	for _, one := range all[:4] {
		one.End()
	}
	if n := begun(all); n != 5 {
		t.Errorf("%d have begun after there is one slot", n)
	}
	all[4].End()
	if n := begun(all); n != 6 {
		t.Errorf("%d have begun after all have ended", n)
	}
	s.empty()
}

// TestUsed counts the slots that are made use of.
func TestUsed(t *testing.T) {
	s := newSim(t, 4, 64)
	s.enter(2, "fast", steady(mib))
	s.enter(2, "slow", steady(kib))
	s.run(time.Second)
	if used, without := s.pool.Used(), s.pool.WithoutSlot(); used != 2 || without != 0 {
		t.Errorf("%d slots are used, %d go on without", used, without)
	}
	s.enter(2, "other", steady(mib))
	s.run(time.Second)
	if used, without := s.pool.Used(), s.pool.WithoutSlot(); used != 4 || without != 2 {
		t.Errorf("%d slots are used, %d go on without", used, without)
	}
}
