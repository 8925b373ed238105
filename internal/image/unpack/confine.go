package unpack

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// Confine takes from this process, in all its threads and for good, whatever its job does not need. Whoever started it
// has taken its capabilities.
func Confine(job Job) error {
	dieFirst()
	if err := bound(job); err != nil {
		return err
	}
	if err := unix.Fchdir(dirFD); err != nil {
		return fmt.Errorf("enter the layer's directory: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("make the layer's directory the root: %w", err)
	}
	if err := unix.Close(dirFD); err != nil {
		return err
	}
	return install(program(unix.Getpid(), job.More))
}

// dieFirst has the kernel choose this process before any other when memory is short. A process that cannot is no worse
// confined.
func dieFirst() {
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte("1000"))
	_ = unix.Close(fd)
}

// bound sets the limits of memory and of a file's size. A file has no more than the layer may have, and its lists are
// no larger than what the layer takes of the disk.
//
// The limit of memory leaves the daemon room to raise it for a window. The process itself cannot: the filter has no
// call for it.
func bound(job Job) error {
	limits := map[int]unix.Rlimit{
		unix.RLIMIT_DATA: {Cur: uint64(job.Memory), Max: uint64(job.Memory + WindowMemory(limit.ZstdWindow.Limit))},
		unix.RLIMIT_CORE: {},
	}
	if job.Limits.Bytes > 0 {
		most := uint64(max(job.Limits.Bytes, 1<<30))
		limits[unix.RLIMIT_FSIZE] = unix.Rlimit{Cur: most, Max: most}
	}
	for which, l := range limits {
		var has unix.Rlimit
		if err := unix.Getrlimit(which, &has); err != nil {
			return fmt.Errorf("read resource limit %d: %w", which, err)
		}
		// The daemon may have been given less (LimitFSIZE=, LimitDATA=), which this process may not raise.
		l.Cur, l.Max = min(l.Cur, has.Max), min(l.Max, has.Max)
		if err := unix.Setrlimit(which, &l); err != nil {
			return fmt.Errorf("set resource limit %d to %d, at most %d: %w", which, l.Cur, l.Max, err)
		}
	}
	return nil
}

// install has the kernel put every system call of all threads through a filter.
func install(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	other, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("install the filter of system calls: %w", errno)
	}
	if other != 0 { // seccomp(2): then the filter is in no thread
		return fmt.Errorf("install the filter of system calls: thread %d has another one", other)
	}
	return nil
}
