package monitor

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// notified and answered are struct seccomp_notif and seccomp_notif_resp of <linux/seccomp.h>.
type notified struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answered struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

const goOnWithCall = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

// failing runs do in a thread whose first calls of that number, so many, the kernel fails with errno. It returns how
// many did.
func failing(t *testing.T, call uint32, errno unix.Errno, times int, do func()) (failed int) {
	t.Helper()
	return failingFrom(t, call, errno, 0, times, do)
}

// failingFrom is failing, and lets so many calls pass first.
func failingFrom(t *testing.T, call uint32, errno unix.Errno, from, times int, do func()) (failed int) {
	t.Helper()
	listener, begun, done := make(chan int), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and it ends with this goroutine
		program := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		fd, _, err := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&filter)))
		if err != 0 {
			t.Logf("no filter of calls: %v", err)
			close(listener)
			return
		}
		listener <- int(fd)
		<-begun
		do()
	}()
	fd, ok := <-listener
	if !ok {
		t.Skip("the kernel does not let calls be failed here")
	}
	defer unix.Close(fd)
	close(begun)
	for passed := 0; ; {
		select {
		case <-done:
			return failed
		default:
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(p, 10); n < 1 || p[0].Revents&unix.POLLIN == 0 {
			continue
		}
		var n notified
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&n))); err != 0 {
			continue // a signal has taken it back
		}
		a := answered{id: n.id, flags: goOnWithCall}
		switch {
		case passed < from:
			passed++
		case failed < times:
			a = answered{id: n.id, errno: -int32(errno)}
		}
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND,
			uintptr(unsafe.Pointer(&a))); err == 0 && a.errno != 0 {
			failed++
		}
	}
}

// TestInterruptedBySignals has signals interrupt what makes a journal, what has its windows grow, and what opens a log,
// as on kernels and file systems that let them.
func TestInterruptedBySignals(t *testing.T) {
	dir := t.TempDir()
	var w window
	var err error
	grown := false
	n := failing(t, unix.SYS_FALLOCATE, unix.EINTR, 3, func() {
		j, e := makeJournal(dir)
		if err = e; e == nil {
			w.open(j, 1)
			grown = true
		}
	})
	if err != nil || !grown || n != 3 {
		t.Fatalf("after %d interruptions a journal is made: %v", n, err)
	}
	defer w.j.close()
	if n := failing(t, unix.SYS_FALLOCATE, unix.EINTR, 2, func() { grown = w.grow() }); !grown || n != 2 {
		t.Errorf("after %d interruptions the window has grown: %v", n, grown)
	}
	var f *logFile
	l := &wire.Log{Dir: dir, Path: "a/0.log"}
	if n := failing(t, unix.SYS_OPENAT2, unix.EINTR, 6, func() { f, err = openLog(l) }); err != nil || n != 6 {
		t.Fatalf("after %d interruptions a log is opened: %v", n, err)
	}
	f.close()
}

// TestSoundJournalThatCannotBeOpened has a monitor that takes over lack memory while it opens a journal: it goes on
// without it, and the next one finds in there what had been taken. One that no release reads is made anew.
func TestSoundJournalThatCannotBeOpened(t *testing.T) {
	m := &Monitor{cfg: Config{Dir: t.TempDir()}, pace: &pace{}}
	takeUp := func() *container {
		c := m.newContainer("c1", wire.Bundle{Terminal: true})
		c.state = wire.Running
		if _, err := takeStreams(c); err != nil {
			t.Error(err)
		}
		return c
	}
	dir := m.dir("c1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j, err := makeJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	start := windowStart(0)
	copy(j.mem[start:], "taken")
	j.head.taken[0][0] = start + int64(len("taken"))
	j.close()

	var c *container
	if n := failing(t, unix.SYS_FALLOCATE, unix.ENOMEM, openTries, func() { c = takeUp() }); n != openTries {
		t.Fatalf("%d calls have failed", n)
	}
	if j := c.out.log.journal; j == nil || j.fd >= 0 {
		t.Error("it goes on with none, or with that one")
	}
	j = takeUp().out.log.journal
	var w window
	w.open(j, 1)
	if got := string(j.mem[w.done.Load():w.taken.Load()]); j.fd < 0 || got != "taken" {
		t.Errorf("the next one finds %q", got)
	}
	j.head.layout++
	j.close()
	if j := takeUp().out.log.journal; j == nil || j.fd < 0 {
		t.Error("where the journal was of another layout there is none")
	} else {
		j.close()
	}
}
