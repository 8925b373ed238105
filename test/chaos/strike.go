package chaos

import (
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// striker strikes at random moments.
type striker struct {
	s      *stage
	l      *load
	mix    mix
	random *rand.Rand
	ends   time.Time
	under  sync.WaitGroup // processes that are stopped, disks that hang or are full, for now
	heals  chan struct{}  // closed when all of these are to go on at once
	busy   sync.Map       // disks that something is done to
}

func newStriker(s *stage, l *load, m mix) *striker {
	k := &striker{s: s, l: l, mix: m, random: rand.New(rand.NewPCG(s.Seed, 1<<32)), heals: make(chan struct{})}
	if s.For > 0 {
		k.ends = time.Now().Add(s.For)
	}
	return k
}

func (k *striker) isOver() bool { return !k.ends.IsZero() && time.Now().After(k.ends) }

// plan is one strike as the seed has it.
type plan struct {
	action
	after    time.Duration // the last strike, and what must have gone on since
	progress int64         // requests that must have got through since the last strike
	into     time.Duration // how long a process that lives but for a moment has lived
	lasts    time.Duration
	delay    time.Duration // of each operation on a disk that is slow
}

func (k *striker) next() plan {
	p := plan{action: k.mix.choose(k.random.IntN(k.mix.sum()))}
	p.after, p.progress = k.upTo(600*time.Millisecond), 2+k.random.Int64N(10)
	if k.random.IntN(6) == 0 { // while what was struck last is still recovering
		p.after, p.progress = k.upTo(150*time.Millisecond), 0
	}
	p.into = k.upTo([]time.Duration{time.Millisecond, 8 * time.Millisecond, 40 * time.Millisecond}[k.random.IntN(3)])
	// Most are short: they are more, and a tenth of a second is long already for a helper program.
	p.lasts = k.upTo(max(k.s.Longest>>(2*k.random.IntN(5)), 50*time.Millisecond))
	if p.verb == "slow" {
		p.delay = k.upTo(mostDelay)
	}
	return p
}

func (k *striker) upTo(most time.Duration) time.Duration {
	return time.Duration(k.random.Int64N(int64(most)))
}

// strikeAll strikes until there were enough strikes, or the time is over. Strikes wait for progress, since on a
// machine that is busy with other things they would meet nobody.
func (k *striker) strikeAll() {
	if len(k.mix) == 0 {
		time.Sleep(time.Until(k.ends))
		return
	}
	for n := 0; (k.s.Strikes == 0 || n < k.s.Strikes) && !k.isOver(); {
		p := k.next()
		k.await(p.progress)
		time.Sleep(p.after)
		if k.strike(p) {
			n++
			k.s.report.struck(p.String())
		}
	}
}

// await waits for requests to get through, but not for ever: what is struck may be what keeps them.
func (k *striker) await(progress int64) {
	until := k.s.client.through.Load() + progress
	for deadline := time.Now().Add(10 * time.Second); k.s.client.through.Load() < until; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) || k.isOver() {
			return
		}
	}
}

// strike does what is planned. It returns false when it met nobody.
func (k *striker) strike(p plan) bool {
	switch p.verb {
	case "kill", "stop":
		return k.strikeProcess(p)
	case "jump":
		return k.jump(p)
	}
	return k.strikeDisk(p)
}

// rarely are the classes of processes that live but for a moment.
var rarely = map[class]bool{unpacker: true, runtime: true, plugin: true}

func (k *striker) strikeProcess(p plan) bool {
	deadline := time.Now().Add(5 * time.Second)
	for {
		if all := k.ofClass(p.class); len(all) > 0 {
			victim := all[k.random.IntN(len(all))]
			if rarely[p.class] {
				time.Sleep(p.into)
			}
			if k.signal(victim, p) {
				return true
			}
		}
		if time.Now().After(deadline) || k.isOver() {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (k *striker) ofClass(c class) (found []process) {
	for _, p := range processes() {
		if k.s.classOf(p) == c {
			found = append(found, p)
		}
	}
	return found
}

// signal kills or stops a process, unless it has ended or become another by now.
func (k *striker) signal(p process, planned plan) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return false
	}
	if now := processOf(p.pid); k.s.classOf(now) != planned.class {
		_ = unix.Close(fd)
		return false
	}
	if k.s.Verbose {
		k.s.report.say("%s %d %.200q for %s", planned, p.pid, p.argv, planned.lasts)
	}
	if planned.verb == "kill" {
		k.s.history.killed(planned.class, p)
		defer func() { _ = unix.Close(fd) }()
		return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
	}
	if unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0) != nil {
		_ = unix.Close(fd)
		return false
	}
	k.later(planned.lasts, func() {
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		_ = unix.Close(fd)
	})
	return true
}

// later calls f when so much time has passed, or all is to go on.
func (k *striker) later(after time.Duration, f func()) {
	k.under.Go(func() {
		select {
		case <-time.After(after):
		case <-k.heals:
		}
		f()
	})
}

// heal has all that is stopped, hangs or is full go on.
func (k *striker) heal() {
	close(k.heals)
	k.under.Wait()
}

// jump sets the machine's clock to another time, and back.
func (k *striker) jump(p plan) bool {
	by := time.Duration(k.random.Int64N(int64(2*time.Hour))) - time.Hour
	if _, busy := k.busy.LoadOrStore("clock", true); busy {
		return false
	}
	if err := turnClock(by); err != nil {
		k.s.report.say("set the clock: %v", err)
		k.busy.Delete("clock")
		return false
	}
	k.later(p.lasts, func() {
		if err := turnClock(-by); err != nil {
			k.s.report.say("set the clock back: %v", err)
		}
		k.busy.Delete("clock")
	})
	return true
}

func turnClock(by time.Duration) error {
	tv := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	return unix.Settimeofday(&tv)
}
