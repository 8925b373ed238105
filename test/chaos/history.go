package chaos

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// aftermath is how long after a strike a runtime may still be busy with it.
const aftermath = 15 * time.Second

// history is what was struck when, for judging what came of it.
type history struct {
	mu       sync.Mutex        // guards all
	pods     map[string]string // by the id of a pod or container
	daemon   []time.Time
	monitors map[string]time.Time // by the pod, or by the container where each has its own
	runtimes map[string]int       // killed ones, by the container
	full     time.Time            // until when the disk of the logs was full; in the future while it is
	hung     time.Time            // until when it hung, likewise
}

func newHistory() *history {
	return &history{pods: map[string]string{}, monitors: map[string]time.Time{}, runtimes: map[string]int{}}
}

// made notes the id of a pod, or of a container in it.
func (h *history) made(id, pod string) {
	if id == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods[id] = pod
}

func (h *history) knows(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pods[id] != ""
}

// killed notes that a process was killed.
func (h *history) killed(c class, p process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch c {
	case daemon:
		h.daemon = append(h.daemon, time.Now())
	case monitor:
		h.monitors[monitored(p)] = time.Now()
	case runtime:
		h.runtimes[containerOf(p)]++
	}
}

// What a runtime promises to whom is said in docs/reliability.md. What is not promised is counted apart.

// promisesLog says whether all that a container of a pod wrote since it was made must be in their logs. One that ends
// while its monitor and the daemon are both dead has nobody to hold what it said last.
func (h *history) promisesLog(pod string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.full.After(since) {
		return false // where there is no room lines are dropped, and the log says so
	}
	return !h.bothDead(pod)
}

// bothDead says whether a pod's monitor and the daemon were dead at the same time. With mu held.
func (h *history) bothDead(pod string) bool {
	return slices.ContainsFunc(h.monitorsOf(pod), func(at time.Time) bool {
		return slices.ContainsFunc(h.daemon, func(d time.Time) bool { return d.Sub(at).Abs() < aftermath })
	})
}

// monitorsOf is when monitors of a pod were killed. With mu held.
func (h *history) monitorsOf(pod string) (all []time.Time) {
	for id, at := range h.monitors {
		if id == pod || h.pods[id] == pod {
			all = append(all, at)
		}
	}
	return all
}

// logsFull notes that the disk of the logs is full, or is so no more.
func (h *history) logsFull(full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.full = until(full)
}

// logsHang notes that the disk of the logs hangs or is slow, or is so no more.
func (h *history) logsHang(hangs bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hung = until(hangs)
}

// until is when something ends that goes on, or that has just ended.
func until(goesOn bool) time.Time {
	if goesOn {
		return time.Now().Add(24 * time.Hour)
	}
	return time.Now()
}

// writesLate says whether a log may still lack what its container wrote: the disk hangs, or did so a moment ago.
func (h *history) writesLate() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.hung) < aftermath
}

// promisesExit says whether the exit codes of a pod must be known. A container that ends while its monitor and the
// daemon are both dead has nobody to take its exit code. Before Linux 6.15 the kernel tells an exit code to nobody
// but a parent.
func (h *history) promisesExit(pod string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.monitorsOf(pod)) == 0 {
		return true
	}
	return !h.bothDead(pod) && tellsExits()
}

// tellsExits says whether the kernel tells an exit code to whoever holds a descriptor of the process.
var tellsExits = sync.OnceValue(func() bool {
	var name unix.Utsname
	var major, minor int
	if unix.Uname(&name) != nil {
		return false
	}
	n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major > 6 || major == 6 && minor >= 15)
})

// promisesStart says whether a container must have been started. One whose runtime is killed three times is given up.
func (h *history) promisesStart(container string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runtimes[container] < 3
}

// promisesLetGo says whether the process of a container that was started must have come to execute its program. A
// runtime that is killed at the moment at which it lets the process go takes that with it, which ends with 1.
func (h *history) promisesLetGo(container string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runtimes[container] == 0
}

// letGoExit is the exit code of such a process.
const letGoExit = 1

// cutOff reports whether a container that has ended with that code may have ended so.
func (h *history) cutOff(container string, code int32) bool {
	return code == letGoExit && !h.promisesLetGo(container)
}
