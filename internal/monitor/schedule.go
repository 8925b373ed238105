package monitor

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// ordinarySchedule gives every thread of this process the policy, the nice value and the I/O priority that a process
// has by default. Those that the daemon was given (CPUSchedulingPolicy=, Nice=, IOSchedulingClass= of its unit) are for
// the daemon, and containers would inherit them from here. What this process may not change stays.
func ordinarySchedule() {
	if isOrdinary() {
		return
	}
	// A thread that is not changed yet may make another one.
	for done := map[string]bool{}; ; {
		before := len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil && !done[t.Name()] {
				done[t.Name()] = true
				_ = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
				_, _, _ = unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioProcess, uintptr(id), 0)
			}
		}
		if len(done) == before {
			return
		}
	}
}

func isOrdinary() bool {
	a, err := unix.SchedGetAttr(0, 0)
	io, _, _ := unix.RawSyscall(unix.SYS_IOPRIO_GET, ioprioProcess, 0, 0)
	return err == nil && a.Policy == unix.SCHED_NORMAL && a.Nice == 0 && (io == 0 || io == ioprioUsual)
}

// Of ioprio_set(2), which has no library. Some kernels say ioprioUsual of a process that was given no priority.
const (
	ioprioProcess = 1
	ioprioUsual   = 2<<13 | 4
)

// affinity is the set of processors that this process was bound to when it began, by CPUAffinity= of the daemon's unit.
// It keeps to them. Containers do not: a kubelet says by cgroups which processors they get, and since Linux 6.2 a
// process that moves to another cpuset remains bound to what it was bound to before.
type affinity struct {
	own   unix.CPUSet
	bound bool // to fewer than there are for it
}

// everywhere has all processors that a set can name. The kernel takes those that the cpuset has.
var everywhere = func() (all unix.CPUSet) {
	all.Fill()
	return all
}()

func newAffinity() (a affinity) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var free unix.CPUSet
	if unix.SchedGetaffinity(0, &a.own) != nil || unix.SchedSetaffinity(0, &everywhere) != nil ||
		unix.SchedGetaffinity(0, &free) != nil || free == a.own {
		return affinity{}
	}
	a.bound = unix.SchedSetaffinity(0, &a.own) == nil
	return a
}

// lifted calls what starts a program, which inherits no affinity.
func (a *affinity) lifted(start func()) {
	if !a.bound {
		start()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.SchedSetaffinity(0, &everywhere) == nil {
		defer unix.SchedSetaffinity(0, &a.own)
	}
	start()
}
