package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/test/isolate"
	"berth/test/timeouts"
)

func testRunner(t testing.TB) *Runner {
	t.Helper()
	return &Runner{Root: isolate.Group(t).Path()}
}

func shell(script string) *exec.Cmd { return exec.Command("/bin/sh", "-c", script) }

// dies wants the process whose pid a script wrote to path to have been killed. It leaves its group before it is dead. A
// zombie, which only its parent can remove, is.
func dies(t *testing.T, path string) {
	t.Helper()
	pid, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return
		}
		if time.Now().After(end) {
			t.Error("the grandchild lives")
			return
		}
	}
}

// hold leaves a grandchild, in a session of its own, that keeps all three streams open and has written its pid.
const hold = `setsid sh -c 'setsid sh -c "echo \$\$ >%[1]s.tmp; mv %[1]s.tmp %[1]s; exec sleep 1000" &'; while ! [ -e %[1]s ]; do sleep 0.01; done; `

func TestGrandchildHoldsNothingUp(t *testing.T) {
	r := testRunner(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	cmd := shell(fmt.Sprintf(hold, pidFile) + "echo out; echo err >&2")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Repeat("x", 1<<20)), &out, &errs
	begun := time.Now()
	if err := r.Run(t.Context(), "op", cmd); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > timeouts.For(time.Minute) {
		t.Errorf("took %v", took)
	}
	if out.String() != "out\n" || errs.String() != "err\n" {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
	dies(t, pidFile)
}

func TestDeadline(t *testing.T) {
	r := testRunner(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	cmd := shell(fmt.Sprintf(hold, pidFile) + "echo waiting for a lock >&2; : >" + pidFile + ".waits; sleep 1000")
	var out bytes.Buffer
	cmd.Stdout = &out
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() { // a deadline that comes when the program waits
		for ctx.Err() == nil {
			if _, err := os.Stat(pidFile + ".waits"); err == nil {
				cancel(context.DeadlineExceeded)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	begun := time.Now()
	err := r.Run(ctx, "op", cmd)
	if took := time.Since(begun); took > timeouts.For(time.Minute) {
		t.Errorf("took %v", took)
	}
	var failed *Error
	if !errors.As(err, &failed) || !failed.Killed || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	if text := err.Error(); !strings.HasPrefix(text, "sh: killed with its children after ") ||
		!strings.HasSuffix(text, ": waiting for a lock") {
		t.Errorf("%q", text)
	}
	dies(t, pidFile)
}

func TestEndings(t *testing.T) {
	r := testRunner(t)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("pod was stopped"))
	for _, c := range []struct {
		name string
		ctx  context.Context
		cmd  *exec.Cmd
		want string
	}{
		{"success", t.Context(), shell("echo noise >&2"), ""},
		{"exit", t.Context(), shell("echo a >&2; echo b >&2; exit 3"), "sh: exit status 3: a\nb"},
		{"signal", t.Context(), shell("kill -9 $$"), "sh: signal: killed"},
		{"many lines", t.Context(), shell("seq 100000 >&2; exit 1"), "sh: exit status 1: 99993\n99994\n99995\n99996\n" +
			"99997\n99998\n99999\n100000"},
		{"no program", t.Context(), exec.Command("/nonexistent/plugin"), "plugin: fork/exec /nonexistent/plugin: no such " +
			"file or directory"},
		{"ended", ended, shell("exit 0"), "sh: not started: pod was stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := r.Run(c.ctx, "op", c.cmd)
			if got := fmt.Sprint(err); got != c.want && !(err == nil && c.want == "") {
				t.Errorf("got %q", got)
			}
		})
	}
	var exit *exec.ExitError
	if err := r.Run(t.Context(), "op", shell("exit 7")); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v", err)
	}
	if err := r.Run(t.Context(), "a/b", shell("exit 0")); err == nil {
		t.Error("took a name with a slash")
	}
}

func TestStreams(t *testing.T) {
	r := testRunner(t)
	var both bytes.Buffer
	cmd := shell("cat; echo out; echo err >&2")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in\n"), &both, &both
	if err := r.Run(t.Context(), "op", cmd); err != nil || both.String() != "in\nout\nerr\n" {
		t.Errorf("%q, %v", &both, err)
	}
	var large bytes.Buffer
	cmd = shell("cat")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(make([]byte, 8<<20)), &large
	if err := r.Run(t.Context(), "op", cmd); err != nil || large.Len() != 8<<20 {
		t.Errorf("%d bytes, %v", large.Len(), err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd = shell("echo to a file; echo err >&2")
	cmd.Stdout, cmd.Stderr = file, file
	if err := r.Run(t.Context(), "op", cmd); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(file.Name()); string(got) != "to a file\nerr\n" {
		t.Errorf("%q", got)
	}
}

// slow takes longer over its first Write than a pipe is waited for.
type slow struct{ got []byte }

func (s *slow) Write(p []byte) (int, error) {
	if len(s.got) == 0 {
		time.Sleep(3 * drainTimeout)
	}
	s.got = append(s.got, p...)
	return len(p), nil
}

// TestSlowReader loses nothing that was written, however late it is read.
func TestSlowReader(t *testing.T) {
	r := testRunner(t)
	var out slow
	cmd := shell("echo a; sleep 0.05; echo b")
	cmd.Stdout = &out
	if err := r.Run(t.Context(), "op", cmd); err != nil || string(out.got) != "a\nb\n" {
		t.Errorf("%q, %v", out.got, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	r := testRunner(t)
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			var out bytes.Buffer
			cmd := shell(fmt.Sprintf("sleep 1000 & echo %d", i))
			cmd.Stdout = &out
			if err := r.Run(t.Context(), "op", cmd); err != nil || out.String() != fmt.Sprintln(i) {
				t.Errorf("%q, %v", &out, err)
			}
		})
	}
	all.Wait()
}

// TestRunStarted tells the process while it runs, or at least is there still; an error ends it.
func TestRunStarted(t *testing.T) {
	r := testRunner(t)
	for range 50 {
		err := r.RunStarted(t.Context(), "op", shell("exit 0"), func(pid int) error {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("not this one")
	err := r.RunStarted(t.Context(), "op", shell("sleep 1000"), func(int) error { return refused })
	if !errors.Is(err, refused) { // testRunner looks for what is left
		t.Error(err)
	}
	called := false
	err = r.RunStarted(t.Context(), "op", exec.Command("/nonexistent"), func(int) error { called = true; return nil })
	if err == nil || called {
		t.Errorf("%v, called %v", err, called)
	}
}

// TestCrun has crun be executed from a read-only mount, told as what it is, and named where it cannot be executed.
func TestCrun(t *testing.T) {
	r := testRunner(t)
	path := filepath.Join(t.TempDir(), "crun")
	program, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	input, hold, err := os.Pipe() // it does not end before it has been looked at
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	var said bytes.Buffer
	cmd := exec.Command(path, "/proc/self/cmdline", "-")
	cmd.Stdin, cmd.Stdout = input, &said
	var st syscall.Statfs_t
	err = r.RunStarted(t.Context(), "op", cmd, func(pid int) error {
		defer hold.Close()
		return syscall.Statfs(fmt.Sprintf("/proc/%d/exe", pid), &st)
	})
	if err != nil || st.Flags&syscall.MS_RDONLY == 0 || said.String() != path+"\x00/proc/self/cmdline\x00-\x00" {
		t.Errorf("flags %#x, it said %q, %v", st.Flags, &said, err)
	}
	err = r.Run(t.Context(), "op", exec.Command(path, "/nonexistent"))
	if err == nil || !strings.HasPrefix(err.Error(), "crun: exit status 1") {
		t.Errorf("a failure: %v", err)
	}
	if err := os.WriteFile(path, []byte("\x7fELF of no machine"), 0o755); err != nil {
		t.Fatal(err)
	}
	err = r.Run(t.Context(), "op", exec.Command(path))
	if err == nil || !strings.Contains(err.Error(), "fork/exec "+path+": exec format error") {
		t.Errorf("what cannot be executed: %v", err)
	}
}

// TestSweep finds what a daemon left that was killed in the middle of an operation.
func TestSweep(t *testing.T) {
	r := testRunner(t)
	g, err := cgroup.Make(r.Root, "cni-0123-7")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	orphan := exec.Command("/bin/sleep", "1000")
	orphan.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	if err := r.Sweep(); err != nil {
		t.Fatal(err)
	}
	if err := orphan.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Error(err)
	}
	if err := (&Runner{Root: r.Root + "/none"}).Sweep(); err != nil {
		t.Error(err)
	}
}

// TestStuck puts a group where an earlier run of the same name left one that it could not empty.
func TestStuck(t *testing.T) {
	r := testRunner(t)
	g, err := cgroup.Make(r.Root, "op-0")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	left := exec.Command("/bin/sleep", "1000")
	left.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	r.remember("op", g)
	// it cannot be removed before it is empty
	if err := r.Run(t.Context(), "op", shell("! test -e "+g.Path())); err != nil {
		t.Errorf("ran before what was left was gone: %v", err)
	}
	if err := left.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Error(err)
	}
	if left := r.Stuck(); len(left) != 0 {
		t.Errorf("still stuck: %v", left)
	}
}

func BenchmarkRun(b *testing.B) {
	r := testRunner(b)
	b.Run("group", func(b *testing.B) {
		for b.Loop() {
			if err := r.Run(b.Context(), "op", exec.Command("/bin/true")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
