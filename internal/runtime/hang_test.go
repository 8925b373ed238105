package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/patience"
)

// TestHungMonitor checks that no call waits for a monitor that does not answer, and that Shutdown ends such a one.
func TestHungMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	pid := g.monitor()
	g.ok(unix.Kill(pid, unix.SIGSTOP))
	g.within(5*time.Second, "the monitor is stopped", func() bool { return stopped(pid) })
	calls := map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := g.Exec(ctx, g.pod, ctr, Exec{Process: process("true")})
			return err
		},
		"signal": func(ctx context.Context) error { return g.Signal(ctx, g.pod, ctr, 15) },
		"adopt":  func(ctx context.Context) error { _, err := g.Adopt(ctx, g.pod); return err },
	}
	ended := make(chan string, len(calls))
	for name, call := range calls {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if call(ctx) == nil {
				t.Errorf("%s of a monitor that hangs succeeded", name)
			}
			ended <- name
		}()
	}
	late := time.After(300*time.Millisecond + patience.For(30*time.Second))
	for range calls {
		select {
		case <-ended:
		case <-late:
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatal("a call waits for a monitor that hangs, long after its context ended")
		}
	}
	began := time.Now()
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.ok(g.Shutdown(t.Context(), g.pod))
	if took := time.Since(began); took > patience.For(40*time.Second) {
		t.Errorf("delete and shutdown took %v", took)
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the monitor lives on: %v", err)
	}
}

// stopped says whether every thread of a process is.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, t := range threads {
		if data, err := os.ReadFile(t); err == nil && !strings.Contains(string(data), ") T ") {
			return false
		}
	}
	return true
}

// TestCancelBehindItsRequest has a monitor find a request and its cancellation at once.
func TestCancelBehindItsRequest(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		began := time.Now()
		_, err := g.Exec(gone, g.pod, ctr, Exec{Process: process("sleep 1002")})
		if took := time.Since(began); err == nil || took >= cancelGrace || g.alive("sleep", "1002") {
			t.Fatalf("after %v: %v; the command runs: %v", took, err, g.alive("sleep", "1002"))
		}
	}
}
