package monitor

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
