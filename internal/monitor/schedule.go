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
	eachThread(func(id int) {
		usual := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
		if unix.SchedSetAttr(id, &usual, 0) != nil { // without CAP_SYS_NICE the nice value cannot be lowered
			if of20, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil {
				usual.Nice = int32(20 - of20)
				_ = unix.SchedSetAttr(id, &usual, 0)
			}
		}
		_, _, _ = unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioProcess, uintptr(id), 0)
	})
}

// eachThread calls f for every thread of this process, also for those that are made meanwhile, perhaps by one to which
// f was not applied yet.
func eachThread(f func(id int)) {
	for done := map[string]bool{}; ; {
		before := len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil && !done[t.Name()] {
				done[t.Name()] = true
				f(id)
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

// newAffinity asks by the first thread, which is always there: to lock a goroutine to its thread has the Go runtime
// make one more.
func newAffinity() (a affinity) {
	first := os.Getpid()
	var free unix.CPUSet
	if unix.SchedGetaffinity(first, &a.own) != nil || unix.SchedSetaffinity(first, &everywhere) != nil ||
		unix.SchedGetaffinity(first, &free) != nil {
		return affinity{}
	}
	if free != a.own {
		a.bound = unix.SchedSetaffinity(first, &a.own) == nil
		return a
	}
	// No affinity, or one to what the cpuset of the daemon has anyway, which a container of a wider one would keep to.
	eachThread(func(id int) { _ = unix.SchedSetaffinity(id, &everywhere) })
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
