package e2e

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/timeouts"
)

// logPipe is a pipe that is the standard error of a node's daemon.
type logPipe struct {
	rig
	*os.File
	lines *bufio.Scanner
}

// pipeNode is a node whose daemon has a pipe as standard error, which nobody reads yet.
func pipeNode(t *testing.T) (r rig, pipe *logPipe) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(at, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(at, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	starter := []string{"sh", "-c", `exec "$@" 2>` + at, "sh"}
	r = ownNode(t, node.Options{Runtime: runtimes()[0], Starter: starter})
	pipe = &logPipe{r, file, bufio.NewScanner(file)}
	pipe.lines.Buffer(nil, 1<<20)
	return r, pipe
}

// calls has so many lines be logged.
func (r rig) calls(n int) {
	r.Helper()
	for range n {
		r.ok(r.within(timeouts.For(10*time.Second), func(ctx context.Context) error {
			_, err := r.n.Runtime.Version(ctx, "")
			return err
		}))
	}
}

// until reads lines until one has the text, and returns all of them.
func (p *logPipe) until(text string) (all []string) {
	p.Helper()
	p.ok(p.SetReadDeadline(time.Now().Add(timeouts.For(20 * time.Second))))
	for p.lines.Scan() {
		if all = append(all, p.lines.Text()); strings.Contains(p.lines.Text(), text) {
			return all
		}
	}
	p.Errorf("%q is not in the log: %v", text, p.lines.Err())
	return all
}

// toldOfLog is how the problem of a log that is not taken begins.
const toldOfLog = "the daemon's log: "

// TestLogThatNobodyReads has a daemon whose standard error is a pipe that is not read, as that of a journald whose disk
// hangs. Pods come and go, and the problem is told. When it is read again it has what was logged, and when its reader
// has gone the daemon goes on.
func TestLogThatNobodyReads(t *testing.T) {
	r, pipe := pipeNode(t)
	r.pull("busybox:latest")
	r.calls(2000)
	life := func() {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000000"))
		r.wantText("exec", c.exec("echo", "hi"), "hi")
		p.remove()
	}
	told := func(want string) {
		r.Helper()
		out, _, code := r.berth("check")
		if (code == 0) != (want == "") || !strings.Contains(out, want) || want == "" && strings.Contains(out, toldOfLog) {
			r.Errorf("berth check: %d, %s; wanted %q", code, out, want)
		}
	}
	life()
	told(toldOfLog + "what reads the daemon's standard error (journald under systemd) has taken no line for ")
	pipe.until("method=RemovePodSandbox")
	r.calls(1)
	told("")
	r.ok(pipe.Close())
	life()
	told(toldOfLog + "it cannot be written")
}

// TestCrashWhileNobodyReads has the watchdog end a daemon (SIGABRT) whose log is not taken: it ends, and the next one
// tells where its stacks are.
func TestCrashWhileNobodyReads(t *testing.T) {
	r, pipe := pipeNode(t)
	r.calls(1500)
	r.ok(unix.Kill(r.n.Pid(), unix.SIGABRT))
	r.ok(r.n.Died(timeouts.For(10 * time.Second)))
	done := make(chan error)
	go func() { done <- r.n.Start() }()
	file := filepath.Join(r.n.State, "crash.before")
	pipe.until("a daemon has crashed while its log was not taken; its stacks are in a file\" path=" + file)
	r.ok(<-done)
	stacks, err := os.ReadFile(file)
	r.ok(err)
	if !strings.Contains(string(stacks), "SIGABRT") || !strings.Contains(string(stacks), "goroutine ") {
		r.Errorf("the stacks: %s", stacks)
	}
	// Where the log is taken they are in the log, as ever.
	r.ok(unix.Kill(r.n.Pid(), unix.SIGABRT))
	pipe.until("SIGABRT")
	go func() { _, _ = io.Copy(io.Discard, pipe) }()
	r.ok(r.n.Died(timeouts.For(10 * time.Second)))
	r.ok(r.n.Start())
}

// TestNonblockingStandardError has another process that shares the standard error of a daemon make it non-blocking, as
// a shell may. No line is lost.
func TestNonblockingStandardError(t *testing.T) {
	r, pipe := pipeNode(t)
	daemon, err := unix.PidfdOpen(r.n.Pid(), 0)
	r.ok(err)
	defer unix.Close(daemon)
	shared, err := unix.PidfdGetfd(daemon, 2, 0)
	r.ok(err)
	defer unix.Close(shared)
	r.ok(unix.SetNonblock(shared, true))
	const calls = 1500
	r.calls(calls)
	for range calls {
		if pipe.until("method=Version"); t.Failed() {
			break
		}
	}
}

// TestLastLines ends a daemon whose log is read again a moment later: what was logged is there, to the last line.
func TestLastLines(t *testing.T) {
	r, pipe := pipeNode(t)
	r.calls(1500)
	r.ok(unix.Kill(r.n.Pid(), unix.SIGTERM))
	time.Sleep(20 * time.Millisecond)
	pipe.until("the daemon ends")
	r.ok(r.n.Died(timeouts.For(10 * time.Second)))
	r.ok(r.n.Start())
}

// TestStartThatFailsWhileNobodyReads starts a daemon that cannot start, with a standard error that is full.
func TestStartThatFailsWhileNobodyReads(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	for full := time.Now(); time.Since(full) < 100*time.Millisecond; {
		_ = writer.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = writer.Write(make([]byte, 1<<16))
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(20*time.Second))
	defer cancel()
	bin, err := node.Binaries(false)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "berth"), "serve", "--config", filepath.Join(t.TempDir(), "none"))
	cmd.Stderr = writer
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it does not end by itself: %v", err)
	}
}
