package footprint

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Memory is what a process occupies, its share of what several map included, and how many threads it has.
type Memory struct {
	PSS     int64 // bytes
	Threads int
}

// Occupied reads the memory of a process.
func Occupied(pid int) (Memory, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	data, err := os.ReadFile(dir + "/smaps_rollup")
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	kib, err := field(data, "Pss:")
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return Memory{}, fmt.Errorf("count threads: %w", err)
	}
	return Memory{PSS: kib << 10, Threads: len(threads)}, nil
}

// Sum adds up the memory of several processes.
func Sum(pids []int) (Memory, error) {
	var sum Memory
	for _, pid := range pids {
		m, err := Occupied(pid)
		if err != nil {
			return Memory{}, err
		}
		sum.PSS += m.PSS
		sum.Threads += m.Threads
	}
	return sum, nil
}

// Activity is what processes have done so far.
type Activity struct {
	CPU     time.Duration
	Wakeups int64 // how often a thread went to sleep by itself, and so was woken
}

// Sub is what was done since an earlier reading of the same processes.
func (a Activity) Sub(b Activity) Activity { return Activity{a.CPU - b.CPU, a.Wakeups - b.Wakeups} }

// Done adds up the activity of the threads of several processes, to the nanosecond.
func Done(pids []int) (Activity, error) {
	var sum Activity
	for _, pid := range pids {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(tasks) == 0 {
			return Activity{}, fmt.Errorf("process %d has ended", pid)
		}
		for _, task := range tasks {
			a, err := doneBy(task)
			if err != nil {
				return Activity{}, err
			}
			sum.CPU += a.CPU
			sum.Wakeups += a.Wakeups
		}
	}
	return sum, nil
}

func doneBy(task string) (Activity, error) {
	status, err := os.ReadFile(task + "/status")
	if err != nil {
		return Activity{}, fmt.Errorf("read activity: %w", err)
	}
	wakeups, err := field(status, "voluntary_ctxt_switches:")
	if err != nil {
		return Activity{}, fmt.Errorf("read %s/status: %w", task, err)
	}
	cpu, err := cpuOf(task)
	return Activity{CPU: cpu, Wakeups: wakeups}, err
}

// tick is the unit of /proc/<pid>/stat on every architecture that Linux has today.
const tick = 10 * time.Millisecond

// cpuOf reads schedstat, which counts nanoseconds, or stat where the kernel has no schedstat.
func cpuOf(task string) (time.Duration, error) {
	if data, err := os.ReadFile(task + "/schedstat"); err == nil {
		first, _, _ := strings.Cut(string(data), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		return time.Duration(ns), err
	}
	fields, err := statFields(task)
	if err != nil {
		return 0, fmt.Errorf("read activity: %w", err)
	}
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if userErr != nil || err != nil {
		return 0, fmt.Errorf("read %s/stat: times are %q and %q", task, fields[11], fields[12])
	}
	return time.Duration(user+system) * tick, nil
}

// field finds "name   number" in the lines of a file of /proc.
func field(data []byte, name string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) > 1 && words[0] == name {
			return strconv.ParseInt(words[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no field %q", name)
}
