package unpack

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Calls that may be made with any arguments, the frequent ones first: kernels before 5.11 go through the filter at
// each. What they can reach is what the descriptors and the root lead to. archCalls has those that are called
// differently.
var calls = []uint32{
	unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_READ, unix.SYS_FUTEX, unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_FCHOWNAT,
	unix.SYS_FCHMODAT, unix.SYS_UTIMENSAT, unix.SYS_OPENAT2, unix.SYS_MKDIRAT, unix.SYS_SYMLINKAT,
	unix.SYS_LINKAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_READLINKAT,
	unix.SYS_FCHDIR, unix.SYS_FSTAT, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_STATX, unix.SYS_FCHOWN, unix.SYS_FCHMOD,
	sysFchmodat2, unix.SYS_FTRUNCATE,
	unix.SYS_FALLOCATE, unix.SYS_LSEEK, unix.SYS_PREAD64, unix.SYS_GETDENTS64, unix.SYS_COPY_FILE_RANGE,
	unix.SYS_FACCESSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR,
	unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
	unix.SYS_FREMOVEXATTR,
	// What the Go runtime needs beside those.
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_GETRANDOM,
	unix.SYS_GETEUID, unix.SYS_GETEGID,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_EXIT,
	unix.SYS_EXIT_GROUP,
}

// Numbers that the library has not, and x32's mark in a number.
const (
	sysFchmodat2 = 452
	x32          = 0x40000000
)

// Offsets in struct seccomp_data. Arguments are looked at by halves.
const (
	atNumber   = 0
	atArch     = 4
	atArgument = 16
	argument   = 8
)

// The results of the filter. What is refused gets EPERM, as a capability that is missing would give.
const (
	allow  = unix.SECCOMP_RET_ALLOW
	refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	kill   = unix.SECCOMP_RET_KILL_PROCESS
)

// program is the filter for a process of that id. With more jobs to come it may receive descriptors, and make what they
// lead to its root.
func program(pid int, more bool) []unix.SockFilter {
	var p []unix.SockFilter
	p = append(p,
		load(atArch), unless(auditArch, 1), result(kill), // calls of another architecture have other numbers
		load(atNumber), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32, Jf: 1}, result(kill))
	allowed := append(slices.Clone(calls), archCalls...)
	if more {
		allowed = append(allowed, unix.SYS_RECVMSG, unix.SYS_CHROOT)
	}
	for _, nr := range allowed {
		p = append(p, when(nr, 1), result(allow))
	}
	// A thread may be made, but no process.
	p = append(p, rule(unix.SYS_CLONE, 0, unix.CLONE_THREAD, unix.CLONE_THREAD)...)
	// Memory is no file's: what is written to files is written by calls.
	p = append(p, rule(unix.SYS_MMAP, 3, unix.MAP_ANONYMOUS, unix.MAP_ANONYMOUS)...)
	p = append(p, rule(unix.SYS_MPROTECT, 2, unix.PROT_EXEC, 0)...)
	// F_SETOWN and F_SETSIG would send signals to anybody.
	for _, command := range []uint32{unix.F_GETFL, unix.F_SETFL, unix.F_GETFD, unix.F_SETFD} {
		p = append(p, choice(unix.SYS_FCNTL, 1, command)...)
	}
	// The runtime interrupts its threads, and names its memory.
	p = append(p, rule(unix.SYS_TGKILL, 0, 0xffffffff, uint32(pid))...)
	p = append(p, rule(unix.SYS_PRCTL, 0, 0xffffffff, unix.PR_SET_VMA)...)
	// clone3 hides its flags from a filter. ENOSYS has everybody fall back to clone.
	p = append(p, when(unix.SYS_CLONE3, 1), result(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)))
	return append(p, result(refuse))
}

func load(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func result(r uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: r} }

// when skips what follows unless the loaded value is k; unless skips it when it is.
func when(k uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
}

func unless(k uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: skip}
}

// choice allows a call whose argument has a value, and leaves the others to what follows.
func choice(nr uint32, arg, value uint32) []unix.SockFilter {
	return []unix.SockFilter{
		load(atNumber), when(nr, 3),
		load(atArgument + arg*argument), when(value, 1), result(allow),
		load(atNumber),
	}
}

// rule allows a call whose argument, its lower half under the mask, has a value; else it is refused.
func rule(nr uint32, arg, mask, value uint32) []unix.SockFilter {
	return []unix.SockFilter{
		when(nr, 5),
		load(atArgument + arg*argument),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
		when(value, 1), result(allow), result(refuse),
	}
}
