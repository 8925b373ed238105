package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// child starts a process that ends with the test at the latest.
func child(t *testing.T, args ...string) (cmd *exec.Cmd, start uint64) {
	t.Helper()
	cmd = exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	start, err := Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, start
}

// TestWaitAndEnding waits for a process that ends, and asks for its status while it is a zombie and when it is reaped.
func TestWaitAndEnding(t *testing.T) {
	cmd, start := child(t, "sleep", "1000")
	pid := cmd.Process.Pid
	fd, err := Open(pid, start)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Wait(soon, fd); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("of one that lives: %v", err)
	}
	if _, ok := Ending(pid, start, fd); ok || !Alive(pid, start) {
		t.Error("one that lives is said to have ended")
	}
	if _, err := Open(pid, start+1); !errors.Is(err, unix.ESRCH) {
		t.Errorf("another process with its pid: %v", err)
	}
	again, err := Open(pid, start)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := Signal(again, int(unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	long, cancel := context.WithTimeout(t.Context(), timeouts.For(30*time.Second))
	defer cancel()
	if err := Wait(long, again); err != nil {
		t.Fatal(err)
	}
	if status, ok := Ending(pid, start, nil); !ok || status.Signal() != unix.SIGTERM || Alive(pid, start) {
		t.Errorf("of a zombie: %v, %v", status, ok)
	}
	if got := Describe(pid, start); !strings.Contains(got, "has ended") {
		t.Errorf("a zombie: %s", got)
	}
	_ = cmd.Wait()
	if status, ok := Ending(pid, start, fd); ok && status.Signal() != unix.SIGTERM {
		t.Errorf("of one that was reaped: %v", status)
	}
	if err := Signal(fd, int(unix.SIGKILL)); err != nil {
		t.Errorf("a signal to one that was reaped: %v", err)
	}
	if got := Describe(pid, start); !strings.Contains(got, "is gone") {
		t.Errorf("one that was reaped: %s", got)
	}
}

// leaderless has the test's own program end its first thread, and go on.
const leaderless = "BERTH_TEST_LEADERLESS"

func init() {
	if os.Getenv(leaderless) != "" {
		goruntime.LockOSThread() // the first thread, before main begins
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(leaderless) != "" {
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends it
			os.Exit(3)
		}()
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	os.Exit(m.Run())
}

// TestFirstThreadEnds has the first thread of a process end alone: that is a zombie, and the process is none.
func TestFirstThreadEnds(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderless+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	start, err := Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(time.Millisecond) {
		if s, err := statOf(pid, start); err != nil || time.Now().After(end) {
			t.Fatalf("its first thread does not end: %v, %v", s, err)
		} else if s[statState] == "Z" {
			break
		}
	}
	if status, ok := Ending(pid, start, nil); ok || !Alive(pid, start) {
		t.Errorf("one that goes on has ended with %v", status)
	}
	if got := Describe(pid, start); !strings.Contains(got, "goes on without its first thread") {
		t.Errorf("one that goes on: %s", got)
	}
	_ = in.Close()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); Alive(pid, start); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
	if status, ok := Ending(pid, start, nil); !ok || status.ExitStatus() != 3 {
		t.Errorf("when all have ended: %v, %v", status, ok)
	}
}

// TestWithoutDescriptors looks at processes while there is no descriptor for that, or only the first of two: none is
// taken for gone, but for one that is.
func TestWithoutDescriptors(t *testing.T) {
	cmd, start := child(t, "sleep", "1000")
	pid := cmd.Process.Pid
	free, err := unix.Dup(0) // the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(most uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: was.Max}); err != nil {
			t.Error(err)
		}
	}
	limit(uint64(free) + 1)
	_, openErr := Open(pid, start)
	limit(uint64(free))
	alive, gone, text := Alive(pid, start), Gone(pid, start), Describe(pid, start)
	limit(was.Cur)
	if !errors.Is(openErr, unix.EMFILE) {
		t.Errorf("opened: %v", openErr)
	}
	if !alive || gone || !strings.Contains(text, "cannot be looked at") {
		t.Errorf("it lives: %v, is gone: %v; %s", alive, gone, text)
	}
	if Alive(pid, start+1) || !Gone(pid, start+1) || Gone(pid, start) || !Gone(0, start) {
		t.Error("with descriptors again")
	}
}

// TestHeld tells a process that is frozen from one that is stopped.
func TestHeld(t *testing.T) {
	cmd, start := child(t, "sleep", "1000")
	pid := cmd.Process.Pid
	if held := Held(pid); held != "" {
		t.Errorf("of one that nobody holds: %q", held)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(timeouts.For(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		if strings.Contains(Describe(pid, start), "is stopped by a signal") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a stopped process: %s", Describe(pid, start))
		}
	}
	if held := Held(pid); held != "" {
		t.Errorf("of one that is stopped: %q", held)
	}
	if held := Held(os.Getpid()); held != "" {
		t.Errorf("of this process: %q", held)
	}
}
