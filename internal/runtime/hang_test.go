package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
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
			_, err := g.Exec(ctx, g.pod, ctr, Exec{Process: shellProcess("true")})
			return err
		},
		"adopt": func(ctx context.Context) error { _, err := g.Adopt(ctx, g.pod); return err },
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
	late := time.After(300*time.Millisecond + timeouts.For(30*time.Second))
	for range calls {
		select {
		case <-ended:
		case <-late:
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatal("a call waits for a monitor that hangs, long after its context ended")
		}
	}
	began := time.Now()
	g.ok(g.Signal(t.Context(), g.pod, ctr, 0)) // needs no monitor
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.ok(g.Shutdown(t.Context(), g.pod))
	if took := time.Since(began); took > timeouts.For(40*time.Second) {
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
		_, err := g.Exec(gone, g.pod, ctr, Exec{Process: shellProcess("sleep 1002")})
		if took := time.Since(began); err == nil || took >= cancelGrace || g.alive("sleep", "1002") {
			t.Fatalf("after %v: %v; the command runs: %v", took, err, g.alive("sleep", "1002"))
		}
	}
}

// halt stops the pod's monitor, as a debugger or a fault of the kernel may.
func (g *rig) halt() int {
	pid := g.monitor()
	g.ok(unix.Kill(pid, unix.SIGSTOP))
	g.within(5*time.Second, "the monitor is stopped", func() bool { return stopped(pid) })
	return pid
}

// TestAwaitExitWithoutAnAnswer ends containers of a monitor that is stopped: one that ends by its signal with a code of
// its own, and one that is killed. Another monitor takes over, and tells how both have ended.
func TestAwaitExitWithoutAnAnswer(t *testing.T) {
	g := newRig(t)
	asked := g.run("trap 'exit 7' TERM; echo ready; while :; do usleep 1000; done")
	g.within(5*time.Second, "the trap is set", func() bool { return g.said(asked) != "" })
	other := g.run("sleep 1000")
	pid := g.halt()
	g.ok(g.Signal(t.Context(), g.pod, asked, 15))
	g.ok(g.AwaitExit(t.Context(), g.pod, asked))
	if e := g.exit(asked); e.Code != 7 || e.Unknown {
		t.Errorf("of the one that was asked: %+v", e)
	}
	g.ok(g.KillAll(t.Context(), g.pod, other))
	g.ok(g.AwaitExit(t.Context(), g.pod, other))
	if e := g.exit(other); e.Code != 137 || e.Unknown {
		t.Errorf("of the one that was killed: %+v", e)
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the monitor that hung lives on: %v", err)
	}
	if n := g.Monitors().Replaced[ReplacedStop]; n != 1 {
		t.Errorf("%d monitors were replaced", n)
	}
}

// TestSilentMonitorIsReplaced has a monitor be stopped that nobody stops a container of. It is replaced after so many
// ticks of the daemon's clock, and the container runs on.
func TestSilentMonitorIsReplaced(t *testing.T) {
	g := newRig(t)
	g.cfg.Tick = 10 * time.Millisecond
	ctr := g.run("sleep 1000")
	pid := g.halt()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	_, err := g.Exec(ctx, g.pod, ctr, Exec{Process: shellProcess("true")})
	cancel()
	if err == nil {
		t.Fatal("a monitor that is stopped answers")
	}
	g.within(30*time.Second, "it is replaced", func() bool { return g.Monitors().Replaced[ReplacedSilent] == 1 })
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the monitor that hung lives on: %v", err)
	}
	g.within(5*time.Second, "its silence is over", func() bool { return len(g.Monitors().Silent) == 0 })
	res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("true")})
	if err != nil || res.ExitCode != 0 {
		t.Errorf("the next one: %+v, %v", res, err)
	}
}

// TestHeldMonitorIsWaitedFor has a monitor be kept from running on purpose, by a debugger. It is told of, and not
// replaced.
func TestHeldMonitorIsWaitedFor(t *testing.T) {
	g := newRig(t)
	g.cfg.Tick = 5 * time.Millisecond
	ctr := g.run("sleep 1000")
	pid := g.monitor()
	release := trace(t, pid)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	_, _ = g.Exec(ctx, g.pod, ctr, Exec{Process: shellProcess("true")})
	cancel()
	g.within(10*time.Second, "it is said to be traced", func() bool {
		silent := g.Monitors().Silent
		return len(silent) == 1 && strings.Contains(silent[0].What, "traced by process")
	})
	time.Sleep(3 * hangTicks * g.cfg.Tick)
	if n := g.Monitors().Replaced[ReplacedSilent]; n != 0 {
		t.Error("it was replaced")
	}
	release()
	g.within(10*time.Second, "it answers again", func() bool {
		res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("true")})
		return err == nil && res.ExitCode == 0
	})
}

// trace stops a process as a debugger does, until release is called or the test ends.
func trace(t *testing.T, pid int) (release func()) {
	t.Helper()
	stop, traced, gone := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		runtime.LockOSThread() // who traces is a thread
		defer runtime.UnlockOSThread()
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		var held []int
		for _, dir := range threads {
			tid, _ := strconv.Atoi(filepath.Base(dir))
			err = errors.Join(err, unix.PtraceSeize(tid), unix.PtraceInterrupt(tid))
			if _, waitErr := unix.Wait4(tid, nil, unix.WALL, nil); waitErr != nil {
				err = errors.Join(err, waitErr)
			}
			held = append(held, tid)
		}
		traced <- err
		<-stop
		for _, tid := range held {
			_ = unix.PtraceDetach(tid) // one that was killed has none to detach
		}
	}()
	release = sync.OnceFunc(func() { close(stop); <-gone })
	t.Cleanup(release)
	if err := <-traced; err != nil {
		t.Fatal(err)
	}
	return release
}
