package footprint

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ResetPeak lets a process's peak of resident memory begin anew.
func ResetPeak(pid int) error {
	// 5 is the kernel's number for it.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset peak memory: %w", err)
	}
	return nil
}

// Resident is the memory of one process in bytes, without its children's.
type Resident struct {
	Peak      int64 // most since ResetPeak, with what it maps of its own program
	Now       int64
	Anonymous int64 // of Now: heap and stacks
}

// ResidentOf reads the memory of a process.
func ResidentOf(pid int) (Resident, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Resident{}, fmt.Errorf("read memory: %w", err)
	}
	var r Resident
	for name, to := range map[string]*int64{"VmHWM:": &r.Peak, "VmRSS:": &r.Now, "RssAnon:": &r.Anonymous} {
		kib, err := field(data, name)
		if err != nil {
			return Resident{}, fmt.Errorf("read memory of process %d: %w", pid, err)
		}
		*to = kib << 10
	}
	return r, nil
}

// Work is what a process and the children that it has waited for have done so far. Its own processor time is counted to
// the nanosecond, its children's to two hundredths of a second: the kernel rounds down both of their numbers.
type Work struct {
	CPU time.Duration
	// Written is what went through write calls, whatever was behind the descriptor. Of a process that pulls images that
	// is files, and a little for requests, answers and logs.
	Written int64
}

// Sub is what was done since an earlier reading.
func (w Work) Sub(b Work) Work { return Work{w.CPU - b.CPU, w.Written - b.Written} }

// WorkOf reads what a process has done.
func WorkOf(pid int) (Work, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	fields, err := statFields(dir)
	if err != nil {
		return Work{}, fmt.Errorf("read processor time: %w", err)
	}
	var w Work
	if w.CPU, err = ownTime(pid); err != nil {
		return Work{}, err
	}
	for _, text := range fields[13:15] { // its children's, in user mode and in the kernel
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Work{}, fmt.Errorf("read %s/stat: %w", dir, err)
		}
		w.CPU += time.Duration(ticks) * tick
	}
	data, err := os.ReadFile(dir + "/io")
	if err != nil {
		return Work{}, fmt.Errorf("read what was written: %w", err)
	}
	w.Written, err = field(data, "wchar:")
	return w, err
}

// ownTime is the processor time of all threads that a process has and has had. /proc/<pid>/stat rounds it down twice,
// by as much as a layer of a small file costs.
func ownTime(pid int) (time.Duration, error) {
	const scheduled = 2 // clock_getcpuclockid(3) makes the same number: CPUCLOCK_SCHED, of a process
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Idle is how long all cores together had nothing to do so far.
func Idle() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read idle time: %w", err)
	}
	var user, nice, system, idle, wait int64
	if _, err := fmt.Sscanf(string(data), "cpu %d %d %d %d %d", &user, &nice, &system, &idle, &wait); err != nil {
		return 0, fmt.Errorf("read idle time in /proc/stat: %w", err)
	}
	return time.Duration(idle+wait) * tick, nil
}
