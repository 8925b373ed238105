package monitor

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/crun"
)

// ending is how a child ended, and when that was seen.
type ending struct {
	status unix.WaitStatus
	at     time.Time
}

// code is the exit code as a shell would say it.
func (e ending) code() int {
	if e.status.Signaled() {
		return 128 + int(e.status.Signal())
	}
	return e.status.ExitStatus()
}

// reaper waits for every child, also those that the kernel gives to a subreaper, and tells whoever asked for one.
type reaper struct {
	mu      sync.Mutex
	waiters map[int]chan ending
	// unclaimed holds endings that had not been asked for, while keep is above zero: a runtime's create tells the
	// container's pid only when it returns, and the container may be dead by then.
	unclaimed map[int]ending
	keep      int
	kick      chan struct{} // a child was made

	forking sync.Mutex // held until a child executes its program, which a disk that hangs can make last for ever
	score   string     // the oom_score_adj of children, "" for this process's own
	pace    *pace      // of this process, which starts programs at the priority that ordinarySchedule left it

	affinity affinity // of this process; programs inherit none
}

func newReaper(score string, p *pace) *reaper {
	return &reaper{
		waiters: map[int]chan ending{}, unclaimed: map[int]ending{}, kick: make(chan struct{}, 1), score: score,
		pace: p, affinity: newAffinity(),
	}
}

// run waits in a thread of its own. To be told by SIGCHLD would take three: os/signal has that many.
func (r *reaper) run() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.ECHILD:
			<-r.kick // only a fork of ours makes children out of none
		case err == nil && (ws.Exited() || ws.Signaled()):
			r.dispatch(pid, ending{ws, time.Now()})
		}
	}
}

func (r *reaper) dispatch(pid int, e ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waiters[pid]; w != nil {
		delete(r.waiters, pid)
		w <- e
	} else if r.keep > 0 {
		r.unclaimed[pid] = e
	}
}

// fork starts a program and returns where its ending will be told.
func (r *reaper) fork(argv []string, attr *syscall.ProcAttr) (int, <-chan ending, error) {
	r.hold()
	defer r.release()
	protect := r.unprotect()
	program, release := crun.Program(argv[0])
	pid, err := 0, error(nil)
	r.pace.aside(func() {
		r.affinity.lifted(func() { pid, err = syscall.ForkExec(program, argv, attr) })
	})
	release()
	protect()
	if err != nil {
		return 0, nil, err
	}
	w := r.claim(pid)
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return pid, w, nil
}

// unprotect lowers this process's protection while a child takes it over, until the child executes its program: the
// kernel lets those that share their memory share the score too, so the way back, protect, is only after that.
func (r *reaper) unprotect() (protect func()) {
	r.forking.Lock()
	if r.score == "" {
		return r.forking.Unlock
	}
	_ = os.WriteFile(scoreFile, []byte(r.score), 0)
	return func() {
		_ = os.WriteFile(scoreFile, []byte(protectedScore), 0)
		r.forking.Unlock()
	}
}

// hold keeps endings that were not asked for until release.
func (r *reaper) hold() {
	r.mu.Lock()
	r.keep++
	r.mu.Unlock()
}

func (r *reaper) release() {
	r.mu.Lock()
	if r.keep--; r.keep == 0 {
		clear(r.unclaimed)
	}
	r.mu.Unlock()
}

// claim asks for the ending of a descendant that is, or was, a child of this process. Between hold and release.
func (r *reaper) claim(pid int) <-chan ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := make(chan ending, 1)
	if e, ok := r.unclaimed[pid]; ok {
		delete(r.unclaimed, pid)
		w <- e
		return w
	}
	r.waiters[pid] = w
	return w
}
