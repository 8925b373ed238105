package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Unlimited stands for no limit.
const Unlimited = math.MaxUint64

// Usage is what a cgroup, with those below it, uses and has used. A part whose Known is false could not be read: the
// host has no such controller, or the kernel no such file.
type Usage struct {
	At     time.Time
	CPU    CPU
	Memory Memory
	Swap   Swap
	Tasks  Tasks
	// CPUPressure, MemoryPressure and IOPressure are known on cgroup v2, and on a hybrid host for groups that are in its
	// cgroup2 hierarchy too.
	CPUPressure, MemoryPressure, IOPressure Pressure

	// What follows is read by Everything only.
	Devices []Device // what was read from and written to block devices
	Huge    []Huge   // by size of page
}

// CPU is time in nanoseconds.
type CPU struct {
	Known         bool
	Usage         uint64
	User, System  uint64 // Everything
	Periods       uint64 // Everything: of a quota, with how many of them ran out of it, and how long tasks then waited
	Throttled     uint64
	ThrottledTime uint64
	Shares        uint64 // Everything: as v1 counts them
	Weight        uint64 // Everything, v2: what Shares was made of, by the line that cAdvisor knows
	Period, Quota uint64 // Everything: in microseconds; Unlimited
}

// Memory is in bytes.
type Memory struct {
	Known       bool
	Usage       uint64
	WorkingSet  uint64 // usage without file pages that were not used lately, as kubelets reckon it
	Limit       uint64 // the group's own; Unlimited
	RSS         uint64 // anonymous memory
	Faults      uint64
	MajorFaults uint64
	OwnKnown    bool   // false of what was added up from several groups
	OwnFaults   uint64 // without those of the groups below, where the kernel tells
	OwnMajor    uint64
	Cache       uint64
	Mapped      uint64
	Active      uint64 // file pages
	Inactive    uint64
	Kernel      uint64
	Peak        uint64 // Everything, as what follows; 0 where the kernel does not tell
	LimitHits   uint64
	OOMKills    uint64
	Reserved    uint64 // what reclaim leaves it
}

// Swap is in bytes.
type Swap struct {
	Known bool
	Usage uint64
	Limit uint64 // of swap alone; Unlimited
	Both  uint64 // v1: the limit of memory and swap together; Unlimited. 0 on v2, which has none
}

// Tasks are processes and their threads.
type Tasks struct {
	Known   bool
	Current uint64
	Max     uint64 // Everything; Unlimited
}

// Pressure is how long tasks waited for something that there was too little of.
type Pressure struct {
	Known      bool
	Some, Full Stall // some tasks waited; none could run
}

// Stall is the time in nanoseconds, and shares of the last seconds in per cent.
type Stall struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// Device is one block device.
type Device struct {
	Major, Minor           uint32
	ReadBytes, WriteBytes  uint64
	Reads, Writes          uint64
	DiscardBytes, Discards uint64
}

// Huge is memory in huge pages of one size, such as 2MB, in bytes.
type Huge struct {
	Size        string
	Usage, Peak uint64
}

// Extent says how much of a group's usage is read.
type Extent int

// Stats is what kubelets ask every few seconds, Everything also what monitoring wants.
const (
	Stats Extent = iota
	Everything
)

// ReadUsage reads what the cgroup at path, which is as for Locate, uses into u, whose slices it reuses. It opens a
// dozen small files and no directory. fs.ErrNotExist when the group is not there.
func ReadUsage(path string, extent Extent, u *Usage) error {
	path, err := checked(path)
	if err != nil {
		return err
	}
	hierarchies, err := mounted()
	if err != nil {
		return err
	}
	*u = Usage{Devices: u.Devices[:0], Huge: u.Huge[:0]}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	u.At = time.Now()
	r.missing, r.err = true, nil
	r.usage(hierarchies, modeOnce(), path, extent, u)
	switch {
	case r.err != nil:
		return fmt.Errorf("usage of cgroup %s: %w", path, r.err)
	case r.missing:
		return fmt.Errorf("usage of cgroup %s: %w", path, fs.ErrNotExist)
	}
	return nil
}

// modeOnce is the mode as it was at the first question, which mounted has the hierarchies of.
var modeOnce = sync.OnceValue(Mode)

// usage reads a group in all hierarchies that have it. On a host of cgroup v2 that is the one hierarchy, also where
// somebody has mounted one of v1 beside it, such as net_cls for a VPN or name=systemd for images with an old systemd:
// runtimes make no groups there.
func (r *reader) usage(hierarchies []hierarchy, mode Modes, path string, extent Extent, u *Usage) {
	unified := mode == V2 || !slices.ContainsFunc(hierarchies, func(h hierarchy) bool { return !h.v2 })
	for i := range hierarchies {
		r.dir = append(append(r.dir[:0], hierarchies[i].dir...), path...)
		switch {
		case hierarchies[i].v2 && unified:
			r.v2(extent, u)
		case hierarchies[i].v2:
			r.pressures(u)
		case !unified:
			r.v1(hierarchies[i].controllers, extent, u)
		}
	}
}

// Processes lists the processes of a cgroup, which is as for Locate, in the group itself and in the one that some
// runtimes make in it for them. fs.ErrNotExist when it is not there.
func Processes(path string) ([]int, error) {
	path, err := checked(path)
	if err != nil {
		return nil, err
	}
	hierarchies, err := mounted()
	if err != nil {
		return nil, err
	}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	r.missing, r.err = true, nil
	var pids []int
	for _, h := range hierarchies {
		if !h.v2 && len(h.controllers) == 0 {
			continue
		}
		for _, below := range []string{"", "/container"} {
			r.dir = append(append(append(r.dir[:0], h.dir...), path...), below...)
			for line := range lines(r.file("cgroup.procs")) {
				if pid, ok := number(line); ok && pid > 0 { // 0 is one of a pid namespace that is not ours
					pids = append(pids, int(pid))
				}
			}
		}
		if !r.missing {
			break
		}
	}
	switch {
	case r.err != nil:
		return nil, fmt.Errorf("processes of cgroup %s: %w", path, r.err)
	case r.missing:
		return nil, fmt.Errorf("processes of cgroup %s: %w", path, fs.ErrNotExist)
	}
	return pids, nil
}

// reader reads the small files of one directory after the other.
type reader struct {
	dir     []byte
	missing bool  // nothing could be read so far
	err     error // the first that is more than a file that is not there
	name    []byte
	data    []byte // as large as the largest file so far
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// file returns the text of a file of the directory, nil when there is none. It is good until the next call.
func (r *reader) file(name string) []byte {
	r.name = append(append(append(r.name[:0], r.dir...), '/'), name...)
	fd, err := unix.Open(string(r.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		r.fail(name, err)
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for {
		if n == len(r.data) {
			r.data = append(r.data, make([]byte, max(len(r.data), 16<<10))...)
		}
		got, err := unix.Read(fd, r.data[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			r.fail(name, err)
			return nil
		}
		if got == 0 {
			break
		}
		n += got
	}
	r.missing = false
	return r.data[:n]
}

// fail keeps an error that is not the group's end, nor a file that this kernel does not have.
func (r *reader) fail(name string, err error) {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.ENOTDIR):
	case r.err == nil:
		r.err = &fs.PathError{Op: "read", Path: filepath.Join(string(r.dir), name), Err: err}
	}
}

// number is a file that holds one number, or max.
func (r *reader) number(name string) (uint64, bool) { return number(r.file(name)) }

// pressures reads PSI, of which a group has all or nothing.
func (r *reader) pressures(u *Usage) {
	before := r.missing
	for _, p := range []struct {
		name string
		to   *Pressure
	}{{"cpu.pressure", &u.CPUPressure}, {"memory.pressure", &u.MemoryPressure}, {"io.pressure", &u.IOPressure}} {
		text := r.file(p.name)
		if text == nil {
			break
		}
		*p.to = pressure(text)
	}
	r.missing = before // that of a hybrid host says nothing about the v1 groups
}

// subtract never goes below nothing: the two were not read at the same instant.
func subtract(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
