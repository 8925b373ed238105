package monitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
)

// TestEndedInTime has an exec end at the moment in which its time is up: it has ended, every time.
func TestEndedInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		ended := make(chan ending, 1)
		ended <- ending{}
		if _, ok := endingWithin(ctx, ended); !ok {
			t.Fatal("it is said to have run out of time")
		}
	}
	if _, ok := endingWithin(ctx, make(chan ending)); ok {
		t.Error("one that has not ended is said to have")
	}
}

// TestExecWithoutACgroupOfItsOwn has a monitor lack a descriptor or memory when it chooses the cgroup of an exec: the
// exec fails, as one whose children could not be ended. Where the container's cgroup takes no other below it, it does
// not.
func TestExecWithoutACgroupOfItsOwn(t *testing.T) {
	m := &Monitor{cfg: Config{Dir: t.TempDir(), Tracking: t.TempDir(), Group: "none"}, pace: &pace{}}
	c := m.newContainer("pids", wire.Bundle{}) // after which the root of that hierarchy is named
	c.process.PID = os.Getpid()
	if root, _, _ := execRoot(c); root == "" {
		t.Skip("a runtime is told of no cgroup by a path of cgroup v1 here")
	}
	born := cgroup.At(t.TempDir())
	for _, f := range []struct {
		call  uint32
		errno unix.Errno
		times int
		want  error
	}{
		{unix.SYS_OPENAT, unix.EMFILE, 1 << 30, unix.EMFILE},
		{unix.SYS_OPENAT, unix.EMFILE, 1, nil}, // for a moment
		{unix.SYS_MKDIRAT, unix.ENOMEM, 1 << 30, unix.ENOMEM},
		{unix.SYS_MKDIRAT, unix.EAGAIN, 1 << 30, nil},
		{unix.SYS_MKDIRAT, unix.EOPNOTSUPP, 1 << 30, nil},
	} {
		var s subgroup
		var err error
		n := failing(t, f.call, f.errno, f.times, func() { s, err = newSubgroup(c, "exec-berth-test", born) })
		if n == 0 || !errors.Is(err, f.want) {
			t.Errorf("after %d times %v: %v", n, f.errno, err)
		}
		own := len(s.groups) == 2 && len(s.args) == 2
		if own != (f.times == 1) {
			t.Errorf("after %d times %v it has %d groups, and the runtime is told %q", n, f.errno, len(s.groups), s.args)
		}
		if own {
			if err := s.groups[1].Remove(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestEndingsWhileAProgramIsNotRead has a program begin that is on a disk which hangs: its file cannot be opened while
// another holds a lease on it. The ends of other children are told meanwhile.
func TestEndingsWhileAProgramIsNotRead(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(program, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no lease on a file: %v", err)
	}
	r := newReaper("", &pace{})
	go r.run()
	_, ended, err := r.fork([]string{"/bin/sleep", "0.5"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan error, 1)
	go func() {
		_, _, err := r.fork([]string{program}, &syscall.ProcAttr{})
		begun <- err
	}()
	select {
	case <-ended:
	case err := <-begun:
		t.Errorf("the program was begun: %v", err)
	case <-time.After(5 * time.Second):
		t.Error("the end of another child is not told")
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // its child has a copy of f
	_ = f.Close()
	<-begun
}
