package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/fixture"
	"berth/test/timeouts"
)

// TestMonitorKilled kills the monitor under containers of all kinds: they go on, and their exits are told.
func TestMonitorKilled(t *testing.T) {
	g := newRig(t)
	writer := g.run("trap 'end=1' TERM; i=0; while [ -z \"$end\" ]; do echo line $i; i=$((i+1)); usleep 10000; done; " +
		"echo last $i; exit 7")
	silent := g.create("echo never started; exit 1")
	input := g.run("while read line; do echo got $line; done; echo END", func(c *Create) { c.Stdin = true })
	once := g.run("while read line; do echo got $line; done; echo END", func(c *Create) {
		c.Stdin, c.StdinOnce = true, true
	})
	tty := g.run("trap 'exit 9' TERM; echo on; while :; do read line; echo got $line; done", func(c *Create) {
		c.Terminal, c.Stdin = true, true
	})
	g.hasSaid(tty, "on")
	time.Sleep(200 * time.Millisecond)
	for range 2 {
		g.killMonitor()
		time.Sleep(200 * time.Millisecond)
	}
	for _, ctr := range []string{input, once, tty} {
		if f, _ := g.found(ctr); f.State != Running {
			t.Fatalf("a container is %+v", f)
		}
		a := Attach{Stdin: strings.NewReader("hello\n"), Stdout: &syncBuffer{}}
		go func() { _ = g.Attach(t.Context(), g.pod, ctr, a) }()
		g.hasSaid(ctr, "got hello")
	}
	g.hasSaid(once, "END")
	if e := g.exit(once); !honest(e, 0) {
		t.Errorf("exit of the one that was given its input: %+v", e)
	}
	if strings.Contains(g.said(input), "END") {
		t.Error("a container saw an end of input that nobody sent")
	}
	g.ok(g.Signal(t.Context(), g.pod, writer, int(unix.SIGTERM)))
	if e := g.exit(writer); !honest(e, 7) || e.StartedAt.IsZero() {
		t.Errorf("exit of the writer: %+v", e)
	}
	// What a monitor had read and not yet written goes with it, a line or what had gathered on a busy machine: one gap for
	// each.
	gaps, next := 0, 0
	lines, last, ended := strings.Cut(g.said(writer), "last ")
	for line := range strings.Lines(lines + "line " + last) {
		var n int
		if _, err := fmt.Sscanf(line, "line %d\n", &n); err != nil || n < next {
			t.Fatalf("after line %d the log has %q: %v", next-1, line, err)
		}
		if n > next {
			gaps++
		}
		next = n + 1
	}
	if gaps > 2 || !ended {
		t.Errorf("%d gaps in the log:\n%s", gaps, g.said(writer))
	}
	g.ok(g.Signal(t.Context(), g.pod, tty, int(unix.SIGTERM)))
	g.ok(unixWrite(g.must(g.Console(t.Context(), g.pod, tty)).(*os.File), "x\n"))
	if e := g.exit(tty); !honest(e, 9) {
		t.Errorf("exit of the one with a terminal: %+v", e)
	}
	g.ok(g.Start(t.Context(), g.pod, silent, g.log(silent), deadline))
	if e := g.exit(silent); !honest(e, 1) {
		t.Errorf("exit of the one started after the take-over: %+v", e)
	}
	if got := g.said(silent); got != "never started\n" {
		t.Errorf("it said %q", got)
	}
}

// TestTerminalOfAKilledMonitor asks for a terminal while another monitor takes over: it may not be told that there is
// none.
func TestTerminalOfAKilledMonitor(t *testing.T) {
	g := newRig(t)
	tty := g.run("trap 'exit 9' TERM; while :; do read line; done", func(c *Create) { c.Terminal, c.Stdin = true, true })
	for range 10 {
		old, end := g.monitor(), time.Now().Add(timeouts.For(10*time.Second))
		g.ok(unix.Kill(old, unix.SIGKILL))
		for another := false; !another; {
			console, err := g.Console(t.Context(), g.pod, tty)
			if err == nil {
				g.ok(console.Close())
				c, err := g.links.monitor(t.Context(), g.pod)
				another = err == nil && c.pid != old
			} else if strings.Contains(err.Error(), "no terminal") || time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
}

func unixWrite(f *os.File, s string) error {
	defer f.Close()
	_, err := f.WriteString(s)
	return err
}

// TestExitWithoutMonitor has a container end while no monitor lives.
func TestExitWithoutMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("trap 'exit 5' TERM; echo on; while :; do sleep 0.05; done")
	killed := g.run("echo on; sleep 1000")
	g.hasSaid(ctr, "on")
	g.hasSaid(killed, "on")
	p, q := g.processOf(ctr), g.processOf(killed)
	l := g.links.get(g.pod)
	l.turn <- struct{}{} // no monitor takes over before this test lets it
	g.ok(unix.Kill(g.monitor(), unix.SIGKILL))
	g.within(5*time.Second, "the monitor is gone", func() bool {
		pids, _ := g.cfg.monitorGroup(g.pod).Pids()
		return len(pids) == 0
	})
	g.ok(unix.Kill(p.PID, unix.SIGTERM))
	g.ok(unix.Kill(q.PID, unix.SIGKILL))
	g.within(5*time.Second, "they have ended", func() bool { return ended(p.PID) && ended(q.PID) })
	<-l.turn
	if e := g.exit(ctr); !e.Unknown && e.Code != 5 || e.Unknown && e.Code != 255 || e.Process != p {
		t.Errorf("exit %+v", e)
	} else if e.Unknown && fixture.KernelTellsExits() {
		t.Errorf("the kernel can tell, and the exit is %+v", e)
	}
	if e := g.exit(killed); !e.Unknown && e.Signal != 9 {
		t.Errorf("exit of the killed: %+v", e)
	}
	time.Sleep(100 * time.Millisecond)
	g.exit(ctr) // still once
}

func ended(pid int) bool { return unix.Kill(pid, 0) != nil || zombie(pid) }

// honest says whether an exit after a take-over is the right one, or unknown where nobody can know.
func honest(e Exit, code int32) bool {
	return e.Code == code && !e.Unknown || e.Code == 255 && e.Unknown && !fixture.KernelTellsExits()
}

// loseDaemon closes the connection with the pod's monitor, as if this process had been killed.
func (g *rig) loseDaemon() {
	l := g.links.remove(g.pod)
	syscall.ForkLock.RLock() // a process that is just being begun would have the connection, too
	defer syscall.ForkLock.RUnlock()
	l.shut().end()
}

// TestDaemonKilled leaves a pod without a daemon: exits are kept, and the next daemon finds all.
func TestDaemonKilled(t *testing.T) {
	g := newRig(t)
	runs, ends := g.run("echo on; sleep 1000"), g.run("trap 'exit 4' TERM; echo on; while :; do usleep 10000; done")
	g.hasSaid(runs, "on")
	g.hasSaid(ends, "on")
	g.loseDaemon()
	g.ok(unix.Kill(g.processOf(ends).PID, unix.SIGTERM))
	kept := filepath.Join(g.cfg.exits(g.pod), ends)
	g.within(10*time.Second, "the exit is kept for the next boot", func() bool {
		_, err := os.Stat(kept)
		return err == nil
	})
	if e, err := ReadExit(kept); err != nil || e.Code != 4 || e.StartedAt.IsZero() || e.FinishedAt.Before(e.StartedAt) {
		t.Errorf("kept: %+v, %v", e, err)
	}
	next := g.must(New(g.cfg)).(*Runtime)
	g.Runtime = next
	inv, err := next.Adopt(t.Context(), g.pod)
	g.ok(err)
	if f := inv.Containers[ends]; f.State != Exited || f.Exit == nil || f.Exit.Code != 4 {
		t.Errorf("the one that ended: %+v", f)
	}
	if f := inv.Containers[runs]; f.State != Running || f.Process != g.processOf(runs) || f.StartedAt.IsZero() {
		t.Errorf("the one that runs: %+v", f)
	}
	g.ok(g.KillAll(t.Context(), g.pod, runs))
	if e := g.exit(runs); e.Signal != 9 || e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	if len(g.exits[ends]) != 0 {
		t.Errorf("an exit of the inventory is told again: %+v", g.exits[ends])
	}
}

// TestInputOfAnEarlierDaemon has a container whose input a client of an earlier daemon had see the end of it, and no
// other.
func TestInputOfAnEarlierDaemon(t *testing.T) {
	g := newRig(t)
	once := func(c *Create) { c.Stdin, c.StdinOnce = true, true }
	had, other := g.run("cat; echo END; exit 6", once), g.run("cat; echo END; exit 6", once)
	g.ok(noteInput(&g.cfg, g.pod, had))
	g.loseDaemon()
	g.Runtime = g.must(New(g.cfg)).(*Runtime)
	g.must(g.Adopt(t.Context(), g.pod))
	if e := g.exit(had); e.Code != 6 {
		t.Errorf("exit %+v", e)
	}
	g.ok(noteInput(&g.cfg, g.pod, other)) // a client of this daemon has it
	g.killMonitor()
	if f, _ := g.found(other); f.State != Running {
		t.Errorf("the other one is %+v", f)
	}
	in := g.must(os.OpenFile(filepath.Join(g.cfg.bundle(g.pod, other), "stdin"), os.O_WRONLY, 0)).(*os.File)
	g.must(in.WriteString("more\n"))
	g.ok(in.Close())
	for end := time.Now().Add(timeouts.For(20 * time.Second)); g.said(other) != "more\n"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the other one has said %q", g.said(other))
		}
	}
}

// replaceUnjoined has the monitor hang while a new daemon begins, which cannot join it, and waits until it is replaced.
func (g *rig) replaceUnjoined() {
	g.Helper()
	g.loseDaemon()
	g.halt()
	g.cfg.Tick = 10 * time.Millisecond
	g.Runtime = g.must(New(g.cfg)).(*Runtime)
	ctx, cancel := context.WithTimeout(g.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := g.Adopt(ctx, g.pod); err == nil {
		g.Fatal("a monitor that is stopped answers")
	}
	g.within(30*time.Second, "it is replaced", func() bool { return g.Monitors().Replaced[ReplacedSilent] == 1 })
}

// TestInputOfAHungMonitor has a monitor hang that a new daemon has never joined. It is replaced, and so is the next
// one: a container whose client is still to come waits for it, and one whose client went with the last daemon sees the
// end.
func TestInputOfAHungMonitor(t *testing.T) {
	g := newRig(t)
	once := func(c *Create) { c.Stdin, c.StdinOnce = true, true }
	waits, had := g.run("cat; echo END; exit 6", once), g.run("cat; echo END; exit 7", once)
	g.ok(noteInput(&g.cfg, g.pod, had))
	g.replaceUnjoined()
	if e := g.exit(had); e.Code != 7 {
		t.Errorf("the one whose client has gone ended with %+v", e)
	}
	g.killMonitor()
	if f, _ := g.found(waits); f.State != Running {
		t.Fatalf("the one that waits for its client is %+v, and has said %q", f, g.said(waits))
	}
	g.ok(g.Attach(t.Context(), g.pod, waits, Attach{Stdin: strings.NewReader("all\n")}))
	if e := g.exit(waits); e.Code != 6 || g.said(waits) != "all\nEND\n" {
		t.Errorf("its exit is %+v, and it has said %q", e, g.said(waits))
	}
}

// TestTerminalsOfAHungMonitor has a monitor hang that a new daemon has never joined. It is replaced, and no terminal is
// hung up or taken for another.
func TestTerminalsOfAHungMonitor(t *testing.T) {
	g := newRig(t)
	tty := func(c *Create) { c.Terminal, c.Stdin = true, true }
	lines := []string{"first", "second"}
	var all []string
	for i, line := range lines {
		all = append(all, g.run("echo on; while read line; do echo "+line+" got $line; done; exit 9", tty))
		g.hasSaid(all[i], "on")
	}
	g.replaceUnjoined()
	for range 2 {
		for i, ctr := range all {
			if f, _ := g.found(ctr); f.State != Running {
				t.Fatalf("one is %+v, and has said %q", f, g.said(ctr))
			}
			typed := newID()[:6]
			g.ok(unixWrite(g.must(g.Console(t.Context(), g.pod, ctr)).(*os.File), typed+"\n"))
			g.hasSaid(ctr, lines[i]+" got "+typed)
		}
		g.killMonitor()
	}
}

// TestInputThatEndsWhileTheMonitorHangs has the client of a container go while the monitor hangs, which is replaced
// only when nobody tries any more to tell it. The container, which reads nothing at that moment, sees the end of its
// input all the same; one whose client is there does not.
func TestInputThatEndsWhileTheMonitorHangs(t *testing.T) {
	g := newRig(t)
	once := func(c *Create) { c.Stdin, c.StdinOnce = true, true }
	had := g.run("while [ ! -e /tmp/read ]; do usleep 10000; done; cat; echo END; exit 6", once)
	has := g.run("cat; echo END; exit 7", once)
	in, typed := io.Pipe()
	ready, attached := make(chan struct{}), make(chan error, 1)
	go func() {
		a := Attach{Stdin: in, Stdout: &syncBuffer{}, Ready: func() { close(ready) }}
		attached <- g.Attach(t.Context(), g.pod, has, a)
	}()
	<-ready
	g.must(typed.Write([]byte("first\n")))
	g.hasSaid(has, "first")
	l := g.links.get(g.pod)
	c := l.live()
	g.halt()
	closeStdin(t.Context(), g.Runtime, g.pod, had)
	g.ok(l.replace(t.Context(), c, ReplacedStop))
	if _, code := g.exec(had, ": >/tmp/read"); code != 0 {
		t.Fatal("no exec")
	}
	if e := g.exit(had); e.Code != 6 {
		t.Errorf("the one whose client has gone ended with %+v", e)
	}
	g.killMonitor()
	if f, _ := g.found(has); f.State != Running || g.said(has) != "first\n" {
		t.Errorf("the one whose client is there is %+v, and has said %q", f, g.said(has))
	}
	g.ok(typed.Close())
	if e := g.exit(has); e.Code != 7 {
		t.Errorf("when its client has gone, too, it ended with %+v", e)
	}
	<-attached
}

// TestExecsOfAKilledMonitor has nothing go on that was asked of a monitor which was killed: nobody is left who would
// tell its end, or keep its time. What an exec left that had ended goes on, also beside later ones.
func TestExecsOfAKilledMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	if _, code := g.exec(ctr, "sleep 4001 >/dev/null 2>&1 &"); code != 0 {
		t.Fatal("no exec")
	}
	execs := make(chan error, 2)
	go func() {
		_, err := g.Exec(t.Context(), g.pod, ctr, Exec{
			Process: shellProcess("trap '' TERM; sleep 4002 & wait"), Timeout: time.Hour,
		})
		execs <- err
	}()
	go func() {
		_, err := g.session(t.Context(), ctr, "trap '' HUP PIPE; sleep 4003 & wait", false, Session{Stdout: &syncBuffer{}})
		execs <- err
	}()
	g.within(5*time.Second, "both run", func() bool {
		return g.alive("sleep", "4001") && g.alive("sleep", "4002") && g.alive("sleep", "4003")
	})
	g.killMonitor()
	for range 2 {
		if err := <-execs; err == nil {
			t.Error("an exec ended well whose monitor was killed")
		}
	}
	g.within(5*time.Second, "they are killed", func() bool {
		return !g.alive("sleep", "4002") && !g.alive("sleep", "4003")
	})
	for range 3 {
		res, err := g.Exec(t.Context(), g.pod, ctr,
			Exec{Process: shellProcess("sleep 4004"), Timeout: 300 * time.Millisecond})
		if err != nil || !res.TimedOut {
			t.Errorf("an exec past its time: %+v, %v", res, err)
		}
	}
	if !g.alive("sleep", "4001") {
		t.Error("what an exec left that had ended was killed")
	}
	g.within(5*time.Second, "no file of an exec is left", func() bool {
		left, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, ctr), "exec-*"))
		return len(left) == 0
	})
}

// TestAttachedToAKilledMonitor tells a client that what it sees is not the end of the output.
func TestAttachedToAKilledMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("echo on; sleep 1000")
	out, ready, ended := &syncBuffer{}, make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdout: out, Ready: func() { close(ready) }})
	}()
	<-ready
	g.killMonitor()
	if err := <-ended; !errors.Is(err, ErrCut) {
		t.Errorf("the client is told %v", err)
	}
	ready = make(chan struct{})
	go func() {
		ended <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdout: out, Ready: func() { close(ready) }})
	}()
	<-ready
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	if err := <-ended; err != nil {
		t.Errorf("at the end of the container: %v", err)
	}
}

// TestAttachedToAReplacedMonitor has a client be attached, with its input, while the monitor hangs and is replaced. It
// is told that its output was cut off, as one whose monitor was killed by somebody else.
func TestAttachedToAReplacedMonitor(t *testing.T) {
	g := newRig(t)
	g.cfg.Tick = 10 * time.Millisecond
	ctr := g.run("echo on; cat; sleep 1000", func(c *Create) { c.Stdin = true })
	g.hasSaid(ctr, "on")
	attach := func(in io.Reader) <-chan error {
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			a := Attach{Stdin: in, Stdout: &syncBuffer{}, Ready: func() { close(ready) }}
			ended <- g.Attach(t.Context(), g.pod, ctr, a)
		}()
		<-ready
		return ended
	}
	in, typed := io.Pipe()
	defer typed.Close()
	ended := []<-chan error{attach(nil), attach(in)}
	g.halt()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	_, _ = g.Exec(ctx, g.pod, ctr, Exec{Process: shellProcess("true")}) // its silence is noticed
	cancel()
	for _, e := range ended {
		if err := <-e; !errors.Is(err, ErrCut) {
			t.Errorf("a client is told %v", err)
		}
	}
	g.within(30*time.Second, "it is replaced", func() bool { return g.Monitors().Replaced[ReplacedSilent] == 1 })
	last := attach(nil)
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	if err := <-last; err != nil {
		t.Errorf("at the end of the container: %v", err)
	}
}

// TestGoneBeforeItIsRead asks a monitor that has gone, which the reader has not seen, and asks again over the
// connection that was given up because of that.
func TestGoneBeforeItIsRead(t *testing.T) {
	dir := t.TempDir()
	f, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = f.Close() // with the connection in it
	c := &client{conn: conn, silence: &silence{}, waiting: map[uint64]*pending{}}
	if !c.killed(t.Context()) {
		t.Error("it is said to live")
	}
	if !c.killed(t.Context()) { // the connection was closed with the first try
		t.Error("it is said to live after that")
	}
	c.quiet()
	if c.killed(t.Context()) {
		t.Error("one that was to go is said to be killed")
	}
}

// TestInputOfAPodThatWasRemoved checks that nothing is kept of a pod for a client's input that ends after it.
func TestInputOfAPodThatWasRemoved(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.ok(g.Shutdown(t.Context(), g.pod))
	quickest := time.Hour
	for range 3 { // a machine may stand still for seconds
		began := time.Now()
		closeStdin(t.Context(), g.Runtime, g.pod, ctr)
		quickest = min(quickest, time.Since(began))
	}
	if quickest > 4*time.Second { // to try for long takes five
		t.Errorf("it takes %v", quickest)
	}
	if l := g.links.known(g.pod); l != nil {
		t.Error("the pod is known again")
	}
}
