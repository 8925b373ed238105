package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/cli/cli/config"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/annotation"
	"berth/test/timeouts"
)

// openPTY returns both ends of a pseudo terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close(); _ = master.Close() })
	return master, slave
}

// person sits at a terminal.
type person struct {
	*testing.T
	master, slave *os.File
	screen        *safeBuffer
	before        *term.State
	code          chan int
}

// sit gives somebody a terminal of 91 by 17.
func sit(t *testing.T) *person {
	t.Helper()
	p := &person{T: t, screen: &safeBuffer{}, code: make(chan int, 1)}
	p.master, p.slave = openPTY(t)
	p.resize(91, 17)
	var err error
	if p.before, err = term.GetState(int(p.slave.Fd())); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(p.screen, p.master) }()
	return p
}

// berth begins a command at the terminal.
func (p *person) berth(ctx context.Context, d *daemon, args ...string) {
	go func() {
		root := New("v")
		root.SetArgs(append([]string{"--socket", d.socket}, args...))
		root.SetIn(p.slave)
		root.SetOut(p.slave)
		root.SetErr(p.slave)
		p.code <- exitCode(root.ExecuteContext(ctx), stderr(root))
	}()
}

func (p *person) resize(width, height uint16) {
	p.Helper()
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: width, Row: height}); err != nil {
		p.Error(err)
	}
}

func (p *person) types(text string) {
	p.Helper()
	if _, err := p.master.WriteString(text); err != nil {
		p.Fatal(err)
	}
}

// sees waits for a text on the screen.
func (p *person) sees(text string) {
	p.Helper()
	for deadline := time.Now().Add(timeouts.For(time.Minute)); !strings.Contains(p.screen.String(), text); time.Sleep(
		5 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatalf("%q does not appear; the screen has %q", text, p.screen.String())
		}
	}
}

// ends waits for the end of the command, which leaves the terminal as it was.
func (p *person) ends(code int) {
	p.Helper()
	select {
	case got := <-p.code:
		if got != code {
			p.Errorf("exit code %d, wanted %d; the screen has %q", got, code, p.screen.String())
		}
	case <-time.After(timeouts.For(time.Minute)):
		p.Fatalf("it does not end; the screen has %q", p.screen.String())
	}
	after, err := term.GetState(int(p.slave.Fd()))
	if err != nil || *p.before != *after {
		p.Errorf("the terminal was not given back: %v", err)
	}
}

func TestRunOnATerminal(t *testing.T) {
	d, logs := runnable(t)
	end := make(chan struct{})
	d.attach = cat(end)
	d.behave = func(*life) int32 { <-end; return 5 }
	p := sit(t)
	p.berth(t.Context(), d, "run", "-it", "--rm", "--log-dir", logs, "img:1")
	p.sees("<91x17>")
	<-d.started
	p.types("\x03k") // ^C goes to the container
	p.sees("\x03k")
	p.resize(40, 10)
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	p.sees("<40x10>")
	p.types("\x04")
	p.ends(5)
	_, ctr := d.onlyRequest(t)
	if !ctr.Tty || !ctr.Stdin {
		t.Errorf("asked for %v", ctr)
	}
}

// TestRunGivesTheTerminalBackAtTheEnd has the pod's end take long: the terminal is the person's again before, and ^C
// ends the waiting.
func TestRunGivesTheTerminalBackAtTheEnd(t *testing.T) {
	d, logs := runnable(t)
	end, stuck := make(chan struct{}), make(chan struct{})
	defer close(stuck)
	d.attach = cat(end)
	d.behave = func(*life) int32 { <-end; return 5 }
	d.before = func(call string) {
		if call == "StopPodSandbox" {
			<-stuck
		}
	}
	p := sit(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.berth(ctx, d, "run", "-it", "--log-dir", logs, "img:1")
	<-d.started
	p.types("\x04")
	until(func() bool { return d.called("StopPodSandbox") })
	now, err := term.GetState(int(p.slave.Fd()))
	if err != nil || *now != *p.before {
		t.Errorf("the terminal was not given back: %v", err)
	}
	cancel()
	p.sees("interrupted")
	p.ends(5)
}

func TestRunIsLeft(t *testing.T) {
	d, logs := runnable(t)
	end := make(chan struct{})
	defer close(end)
	heard := make(chan *admin.AttachInput, 100)
	d.attach = func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
		_ = send(&admin.AttachOutput{Ready: true})
		for {
			in, err := recv()
			if err != nil {
				close(heard)
				return err
			}
			if in.Resize == nil {
				heard <- in
				_ = send(&admin.AttachOutput{Stdout: []byte("heard")})
			}
		}
	}
	d.behave = func(*life) int32 { <-end; return 5 }
	p := sit(t)
	p.berth(t.Context(), d, "run", "-it", "--rm", "--name", "shell", "--log-dir", logs, "img:1")
	<-d.started
	p.types("k")
	p.sees("heard")
	p.types("\x10\x11")
	p.ends(0)
	p.sees("berth attach shell comes back to it, berth rm -f shell ends it")
	if _, ctr := d.onlyRequest(t); ctr.Annotations[annotation.KeyRemove] != string(annotation.Later) {
		t.Errorf("nobody removes it at its end: %v", ctr.Annotations)
	}
	for in := range heard {
		if string(in.Stdin) != "k" {
			t.Errorf("the container was told %q, and that its input ended: %v", in.Stdin, in.CloseStdin)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.containers) != 1 || d.containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("it did not go on: %v", d.containers)
	}
}

func TestRunForOneWhoComesLater(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-dit", "--log-dir", logs, "img:1"); code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	if _, ctr := d.onlyRequest(t); !ctr.Tty || !ctr.Stdin || ctr.StdinOnce {
		t.Errorf("asked for %v", ctr)
	}
}

// TestInterruptedCommands has ^C end what goes on until then.
func TestInterruptedCommands(t *testing.T) {
	d := populated(t)
	began := make(chan struct{}, 1)
	d.attach = func(recv func() (*admin.AttachInput, error), _ func(*admin.AttachOutput) error) error {
		began <- struct{}{}
		_, err := recv()
		return err
	}
	d.exec = func(ctx context.Context, _ *admin.ExecRequest, _ func() (*admin.AttachInput, error),
		_ func(*admin.AttachOutput) error) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	for command, want := range map[string]struct {
		code int
		said string
	}{"attach --no-stdin postgres": {0, ""}, "exec postgres sleep": {130, "berth: interrupted\n"}} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-began
			cancel()
		}()
		out, errs, code := d.berthIn(ctx, strings.NewReader(""), strings.Fields(command)...)
		if out != "" || errs != want.said || code != want.code {
			t.Errorf("%s: code %d, %q %q", command, code, out, errs)
		}
	}
}

// TestInterruptedLogin has ^C end berth login while it asks, with the terminal as it was and nothing kept.
func TestInterruptedLogin(t *testing.T) {
	d := startDaemon(t)
	for asks, args := range map[string][]string{
		"username: ": {"login", "registry.example"}, "password: ": {"login", "-u", "me", "registry.example"},
	} {
		p := sit(t)
		ctx, cancel := context.WithCancel(t.Context())
		p.berth(ctx, d, args...)
		p.sees(asks)
		if asks == "password: " {
			until(func() bool {
				now, err := term.GetState(int(p.slave.Fd()))
				return err == nil && *now != *p.before
			})
		}
		cancel()
		p.sees("interrupted")
		p.ends(130)
	}
	if _, err := os.Stat(filepath.Join(config.Dir(), "config.json")); !absent(err) {
		t.Errorf("credentials were kept: %v", err)
	}
}

// TestInterruptAtATerminal has the prompt that comes after ^C begin a line.
func TestInterruptAtATerminal(t *testing.T) {
	p := sit(t)
	root := New("v")
	root.SetIn(p.slave)
	root.SetErr(p.slave)
	ctx, stop := untilInterrupted(root)
	defer stop()
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	p.sees("\n")
}

func TestFrame(t *testing.T) {
	lines := []string{"HEAD", "ä23456789", "b", "c", "d"}
	for _, c := range []struct {
		width, height int
		want          string
	}{
		{80, 24, "HEAD|ä23456789|b|c|d|"},
		{5, 6, "HEAD|ä2345|b|c|d|"},
		{80, 5, "HEAD|ä23456789|b|… 2 more|"},
		{80, 1, "HEAD|… 4 more|"},
	} {
		got := frame(lines, c.width, c.height)
		got, home := strings.CutPrefix(got, "\x1b[H")
		got, rest := strings.CutSuffix(got, "\x1b[J")
		if n := strings.Count(got, "\x1b[K"); n != strings.Count(got, "\n") {
			t.Errorf("%d by %d: %d lines were cleared", c.width, c.height, n)
		}
		if got = strings.ReplaceAll(strings.ReplaceAll(got, "\x1b[K", ""), "\n", "|"); got != c.want || !home || !rest {
			t.Errorf("%d by %d: %q, wanted %q", c.width, c.height, got, c.want)
		}
	}
}

func TestStatsOnATerminal(t *testing.T) {
	d := statsDaemon(t)
	t.Setenv("TERM", "xterm")
	p := sit(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.berth(ctx, d, "stats", "--interval", "100ms")
	p.sees("\x1b[H\x1b[KCONTAINER")
	p.sees("FILES\r\n\x1b[K")
	p.resize(20, 10)
	p.sees("CONTAINER  NAME  POD\r\n")
	p.resize(91, 3)
	p.sees("… 2 more\r\n\x1b[J")
	cancel()
	p.ends(0)
}

// TestEchoAfterItWasGivenBack has a terminal be given back just before what is typed would be hidden: it shows that
// nevertheless.
func TestEchoAfterItWasGivenBack(t *testing.T) {
	_, slave := openPTY(t)
	shows := func() bool {
		t.Helper()
		now, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return now.Lflag&unix.ECHO != 0
	}
	e := &echo{fd: int(slave.Fd())}
	if err := e.hide(); err != nil || shows() {
		t.Errorf("what is typed is shown: %v", err)
	}
	if e.show(); !shows() {
		t.Error("what is typed is hidden")
	}
	if err := e.hide(); err != nil {
		t.Error(err)
	}
	e.giveBack()
	if err := e.hide(); err == nil || !shows() {
		t.Errorf("what is typed is hidden after the terminal was given back: %v", err)
	}
}
