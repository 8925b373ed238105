package monitor

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What a container writes to its log costs processor time of its monitor, which no limit of the pod bounds. So a
// monitor that uses much of it stands back: its threads yield to all other processes of the node. On a node with time
// to spare that changes nothing; on one without, it is the log that flows more slowly, and in the end the container
// that writes it.
const (
	paceBytes = 256 << 10              // are taken between two looks at the time
	paceTakes = 64                     // or so many times was something taken
	paceTime  = 100 * time.Millisecond // at least
	paceMuch  = 0.03                   // of a processor, from which on a monitor stands back
	paceLess  = 0.01                   // until it uses no more than that
	paceNice  = 5                      // a third of the weight of others, so that it is late and never starves
)

// pace is how much processor time a monitor uses while its containers write.
type pace struct {
	taken, takes atomic.Int64 // since the last look

	mu    sync.Mutex // guards what follows
	at    time.Time  // of the last look, when used was the processor time of this process
	used  time.Duration
	back  bool // the monitor stands back
	busy  bool // a program is being started: it does not begin to stand back
	apart int  // the thread that starts a program while it does
	same  bool // there is no way to stand back, and not to
	was   priority
}

// priority is what a process has as long as it does not stand back.
type priority struct{ threads, session int }

// count notes that so many bytes were taken, and has the monitor stand back, or be as it was.
func (p *pace) count(n int) {
	if p.taken.Add(int64(n)) < paceBytes && p.takes.Add(1) < paceTakes {
		return
	}
	p.taken.Store(0)
	p.takes.Store(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	gone := now.Sub(p.at)
	if gone < paceTime {
		return
	}
	used := processorTime()
	share := float64(used-p.used) / float64(gone)
	p.at, p.used = now, used
	switch {
	case !p.back && !p.busy && share > paceMuch && p.mayReturn():
		p.set(true)
	case p.back && share < paceLess:
		p.set(false)
	}
}

// mayReturn notes the priority that the process has, and tries whether a thread may be given it back, which takes
// CAP_SYS_NICE. With mu held.
func (p *pace) mayReturn() bool {
	if p.same {
		return false
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	p.was.threads = 20 - n // the system call has no results below zero
	p.same = err != nil || p.was.threads+paceNice > 19 || setPriority(0, p.was.threads+1) != nil ||
		setPriority(0, p.was.threads) != nil
	text, _ := os.ReadFile(autogroup) // ends in the priority
	if f := strings.Fields(string(text)); len(f) > 0 {
		p.was.session, _ = strconv.Atoi(f[len(f)-1])
	}
	return !p.same
}

func setPriority(thread, nice int) error { return unix.Setpriority(unix.PRIO_PROCESS, thread, nice) }

func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

const autogroup = "/proc/self/autogroup" // where the kernel has it

// set gives all threads a priority; one that is made meanwhile has that of its maker. Processes outside of all groups
// are weighed by session (sched(7), autogroup), in which that of a thread says nothing to others: the session has one,
// too. With mu held.
func (p *pace) set(back bool) {
	p.back = back
	now := p.was
	if back {
		now = priority{p.was.threads + paceNice, min(19, p.was.session+paceNice)}
	}
	_ = os.WriteFile(autogroup, []byte(strconv.Itoa(now.session)), 0)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil && id != p.apart {
			_ = setPriority(id, now.threads)
		}
	}
}

// aside calls what starts a program, which inherits the priority of this thread and passes it on to the container: for
// that long it is what it was when this process began. One at a time.
func (p *pace) aside(start func()) {
	if p.asBefore() {
		defer p.mayStandBack()
		start()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := unix.Gettid()
	p.leave(own, own, 0)
	start()
	p.leave(0, own, paceNice)
}

// asBefore reports whether the monitor does not stand back. Then it does not begin to until mayStandBack, and who
// starts a program needs no thread of its own, for which Go would make another one.
func (p *pace) asBefore() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = !p.back
	return p.busy
}

func (p *pace) mayStandBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
}

// leave has set leave that thread alone, and gives the own one a priority by so much below what it was, where the
// monitor stands back.
func (p *pace) leave(apart, own, below int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.apart = apart; p.back {
		_ = setPriority(own, p.was.threads+below)
	}
}
