package runtime

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/fixture"
	"berth/test/timeouts"
)

// buildBoxed builds the runtime whose containers are in a box, once.
var buildBoxed = sync.OnceValues(func() (string, error) { return fixture.Boxed(host.dir) })

// boxRig is a pod that is a box, and whose containers have no process that the host knows as theirs.
type boxRig struct{ *rig }

func newBoxRig(t *testing.T) boxRig {
	t.Helper()
	g := boxRig{newRig(t)}
	path := g.must(buildBoxed()).(string)
	g.handler = Handler{Name: "boxed", Path: path, Root: filepath.Join(g.cfg.State, "runtime", "boxed"),
		ExtraArgs: []string{"--inner=" + host.runtime}, Infra: true}
	sp := g.spec(g.pod, "")
	sp.Annotations = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
	_, err := g.Create(t.Context(), g.pod, Create{Container: g.pod, Handler: g.handler, Spec: sp, Deadline: deadline})
	g.ok(err)
	t.Cleanup(g.empty)
	g.ok(g.Start(t.Context(), g.pod, g.pod, Log{}, deadline))
	return g
}

// empty removes the containers, and then the box.
func (g boxRig) empty() {
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(30*time.Second))
	defer cancel()
	for _, c := range append(g.made, g.pod) {
		if err := g.Delete(ctx, g.pod, c, g.handler); err != nil {
			g.Errorf("delete: %v", err)
		}
	}
	g.made = nil
}

// inside says that a container is in the box.
func (g boxRig) inside(c *Create) {
	c.Spec.Annotations = map[string]string{"io.kubernetes.cri.container-type": "container",
		"io.kubernetes.cri.sandbox-id": g.pod}
}

func (g boxRig) create(script string, change ...func(*Create)) string {
	g.Helper()
	return g.rig.create(script, append(change, g.inside)...)
}

func (g boxRig) run(script string, change ...func(*Create)) string {
	g.Helper()
	return g.rig.run(script, append(change, g.inside)...)
}

// wantBox wants the box to live: it is what the runtime calls the process of every container.
func (g boxRig) wantBox() {
	g.Helper()
	if f, ok := g.found(g.pod); !ok || f.State != Running {
		g.Errorf("the box is %+v", f)
	}
}

func (g boxRig) wantExit(ctr string, code int32) {
	g.Helper()
	e := g.exit(ctr)
	if e.Code != code || e.Unknown || e.FinishedAt.IsZero() {
		g.Errorf("exit %+v, not %d", e, code)
	}
	if p := g.processOf(g.pod); e.Process != p {
		g.Errorf("its process is %+v, the box's %+v", e.Process, p)
	}
}

// TestGuest has containers in a box live and end as others do.
func TestGuest(t *testing.T) {
	g := newBoxRig(t)
	t.Run("streams and exit", func(t *testing.T) {
		c := g.run("read line; echo got $line; echo bad >&2; exit 7", func(c *Create) { c.Stdin = true })
		if p := g.processOf(c); p != g.processOf(g.pod) {
			t.Errorf("the runtime names %+v: this test is of one that names the box", p)
		}
		go func() { _ = g.Attach(t.Context(), g.pod, c, Attach{Stdin: strings.NewReader("hello\n")}) }()
		g.wantExit(c, 7)
		if e := g.exit(c); e.StartedAt.IsZero() {
			t.Errorf("it ended as one that never started: %+v", e)
		}
		for _, want := range []string{" stdout F got hello\n", " stderr F bad\n"} {
			if !strings.Contains(g.logged(c), want) {
				t.Errorf("its log has no %q:\n%s", want, g.logged(c))
			}
		}
	})
	t.Run("quick", func(t *testing.T) {
		g.wantExit(g.run("exit 3"), 3)
	})
	t.Run("input for one client", func(t *testing.T) {
		c := g.run("cat; echo END", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
		go func() { _ = g.Attach(t.Context(), g.pod, c, Attach{Stdin: strings.NewReader("all\n")}) }()
		g.wantExit(c, 0)
		if got := g.said(c); got != "all\nEND\n" {
			t.Errorf("it said %q", got)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		c := g.run("stty size; read line; echo got $line; exit 4", func(c *Create) { c.Terminal, c.Stdin = true, true })
		g.ok(unixWrite(g.must(g.Console(t.Context(), g.pod, c)).(*os.File), "x\n"))
		g.wantExit(c, 4)
		if !strings.Contains(g.said(c), "got x") {
			t.Errorf("it said %q", g.said(c))
		}
	})
	t.Run("signal", func(t *testing.T) {
		c := g.run("trap 'exit 9' TERM; echo on; while :; do usleep 1000; done")
		g.hasSaid(c, "on")
		g.ok(g.Signal(t.Context(), g.pod, c, int(unix.SIGTERM)))
		g.wantExit(c, 9)
		g.ok(g.Signal(t.Context(), g.pod, c, int(unix.SIGTERM))) // needs nobody any more
	})
	t.Run("signal that the runtime refuses", func(t *testing.T) {
		c := g.run("echo on; while :; do usleep 1000; done")
		g.hasSaid(c, "on")
		g.ok(g.Signal(t.Context(), g.pod, c, 37)) // SIGRTMIN+3: what is to end is killed when its time is up
		g.ok(g.KillAll(t.Context(), g.pod, c))
		g.wantExit(c, 137)
	})
	t.Run("kill", func(t *testing.T) {
		c := g.run("trap '' TERM; echo on; while :; do usleep 1000; done")
		g.hasSaid(c, "on")
		g.ok(g.KillAll(t.Context(), g.pod, c))
		g.wantExit(c, 137)
	})
	t.Run("not started", func(t *testing.T) {
		c := g.create("true")
		g.ok(g.Signal(t.Context(), g.pod, c, int(unix.SIGHUP))) // nobody there yet
		if f, _ := g.found(c); f.State != Created {
			t.Errorf("it is %+v", f)
		}
		g.ok(g.KillAll(t.Context(), g.pod, c))
		g.wantExit(c, 137)
	})
	t.Run("start that is not recorded", func(t *testing.T) {
		c := g.create("true")
		block := filepath.Join(g.cfg.bundle(g.pod, c), "bundle.tmp")
		g.ok(os.Mkdir(block, 0o700))
		if err := g.Start(t.Context(), g.pod, c, g.log(c), deadline); err == nil {
			t.Error("it was started")
		}
		g.ok(os.Remove(block))
		g.ok(g.KillAll(t.Context(), g.pod, c)) // it can end as one that was never started
		g.wantExit(c, 137)
	})
	t.Run("cannot start", func(t *testing.T) {
		c := g.create("", func(c *Create) { c.Spec.Process.Args = []string{"/nonesuch"} })
		err := g.Start(t.Context(), g.pod, c, g.log(c), deadline)
		if err == nil || !strings.Contains(err.Error(), "nonesuch") {
			t.Errorf("start: %v", err)
		}
		began := time.Now()
		g.ok(g.Delete(t.Context(), g.pod, c, g.handler))
		if d := time.Since(began); d > timeouts.For(30*time.Second) {
			t.Errorf("it took %v to remove", d)
		}
	})
	g.wantBox()
}

// TestGuestExec runs processes in a container in a box, and wants nothing left of one whose time is up.
func TestGuestExec(t *testing.T) {
	g := newBoxRig(t)
	c := g.run("echo on; while :; do usleep 1000; done")
	g.hasSaid(c, "on")
	if out, code := g.exec(c, "echo hi; exit 5"); out != "hi\n" || code != 5 {
		t.Errorf("said %q, code %d", out, code)
	}
	began := time.Now()
	res, err := g.Exec(t.Context(), g.pod, c,
		Exec{Process: shellProcess("sleep 7531 & sleep 7532"), Timeout: timeouts.For(3 * time.Second)})
	g.ok(err)
	if !res.TimedOut || time.Since(began) > timeouts.For(40*time.Second) {
		t.Errorf("after %v: %+v", time.Since(began), res)
	}
	g.within(5*time.Second, "nothing of it is left", func() bool {
		return !g.alive("sleep", "7531") && !g.alive("sleep", "7532")
	})
	tty := shellProcess("stty size; read line; echo got $line; exit 6")
	tty.Terminal = true
	var out syncBuffer
	code, err := g.Session(t.Context(), g.pod, c, Session{Process: tty, Stdin: strings.NewReader("x\n"), Stdout: &out})
	if g.ok(err); code != 6 || !strings.Contains(out.String(), "got x") {
		t.Errorf("with a terminal: code %d, %q", code, out.String())
	}
	g.wantBox()
}

// TestGuestMonitorKilled kills the monitor under containers in a box: they go on, and their exits are told.
func TestGuestMonitorKilled(t *testing.T) {
	g := newBoxRig(t)
	ends := g.run("trap 'exit 8' TERM; echo on; while :; do usleep 1000; done")
	silent := g.create("echo never started; exit 1")
	tty := g.run("read line; echo got $line; exit 9", func(c *Create) { c.Terminal, c.Stdin = true, true })
	g.hasSaid(ends, "on")
	for range 2 {
		g.killMonitor()
	}
	if f, _ := g.found(ends); f.State != Running {
		t.Fatalf("a container is %+v", f)
	}
	g.within(10*time.Second, "one wait for each that runs", func() bool { return waits(ends) == 1 && waits(tty) == 1 })
	g.wantBox()
	g.ok(g.Signal(t.Context(), g.pod, ends, int(unix.SIGTERM)))
	g.wantExit(ends, 8)
	g.ok(unixWrite(g.must(g.Console(t.Context(), g.pod, tty)).(*os.File), "x\n"))
	g.wantExit(tty, 9)
	g.ok(g.Start(t.Context(), g.pod, silent, g.log(silent), deadline))
	g.wantExit(silent, 1)
	if got := g.said(silent); got != "never started\n" {
		t.Errorf("it said %q", got)
	}
}

// waits counts the processes that wait for a container.
func waits(ctr string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if d, _ := os.ReadFile(p); bytes.HasSuffix(d, []byte("\x00wait\x00"+ctr+"\x00")) {
			n++
		}
	}
	return n
}

// TestGuestWaitKilled kills the process that waits for a container in a box: there is another one, and the exit is
// told.
func TestGuestWaitKilled(t *testing.T) {
	g := newBoxRig(t)
	c := g.run("read line; exit 6", func(c *Create) { c.Stdin = true })
	g.within(10*time.Second, "somebody waits", func() bool { return waits(c) == 1 })
	g.killWait(c)
	g.within(10*time.Second, "somebody waits again", func() bool { return waits(c) == 1 })
	if f, _ := g.found(c); f.State != Running {
		t.Errorf("it is %+v", f)
	}
	go func() { _ = g.Attach(t.Context(), g.pod, c, Attach{Stdin: strings.NewReader("x\n")}) }()
	g.wantExit(c, 6)
}

// TestGuestWithoutDescriptors has a monitor have no descriptor left when the process that waits for a container in a
// box is killed, and when one that was not started is sent a signal: both live, and their true ends are told later.
// That nobody waits meanwhile is said again and again.
func TestGuestWithoutDescriptors(t *testing.T) {
	g := newBoxRig(t)
	runs := g.run("read line; exit 6", func(c *Create) { c.Stdin = true })
	silent := g.create("echo never started; exit 1")
	g.within(10*time.Second, "somebody waits", func() bool { return waits(runs) == 1 })
	undo := g.bound(0)
	g.killWait(runs)
	g.ok(g.Signal(t.Context(), g.pod, silent, int(unix.SIGTERM)))
	time.Sleep(2 * time.Second) // as long as a signal may take
	undo()
	said := string(g.must(os.ReadFile(filepath.Join(g.cfg.dir(g.pod), "m.log"))).([]byte))
	if n := strings.Count(said, "is tried until it can be"); n < 2 || n > 8 {
		t.Errorf("it was said %d times:\n%s", n, said)
	}
	g.within(10*time.Second, "somebody waits again", func() bool { return waits(runs) == 1 })
	for ctr, want := range map[string]string{runs: Running, silent: Created} {
		if f, _ := g.found(ctr); f.State != want {
			t.Errorf("what is %s is told to be %+v", want, f)
		}
	}
	go func() { _ = g.Attach(t.Context(), g.pod, runs, Attach{Stdin: strings.NewReader("x\n")}) }()
	g.wantExit(runs, 6)
	g.ok(g.Start(t.Context(), g.pod, silent, g.log(silent), deadline))
	g.wantExit(silent, 1)
	g.wantBox()
}

// killWait kills what waits for a container in a box.
func (g boxRig) killWait(ctr string) {
	g.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if d, _ := os.ReadFile(p); bytes.HasSuffix(d, []byte("\x00wait\x00"+ctr+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			g.ok(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// TestBoxKilled kills the box: all that is in it has ended, started or not.
func TestBoxKilled(t *testing.T) {
	g := newBoxRig(t)
	runs, silent := g.run("echo on; while :; do usleep 1000; done"), g.create("true")
	g.hasSaid(runs, "on")
	g.ok(unix.Kill(g.processOf(g.pod).PID, unix.SIGKILL))
	g.wantExit(runs, 137)
	g.wantExit(g.pod, 137)
	g.ok(g.KillAll(t.Context(), g.pod, silent))
	g.wantExit(silent, 137)
}

// TestSweepGuest has a sweep find a container in a box that no pod owns.
func TestSweepGuest(t *testing.T) {
	g := newBoxRig(t)
	c := g.run("while :; do usleep 1000; done", func(c *Create) { c.Spec.Process.Env = append(c.Spec.Process.Env, "X=1") })
	handler := func(string) (Handler, error) { return g.handler, nil }
	g.ok(g.Sweep(t.Context(), func(string) bool { return true }, handler))
	if f, _ := g.found(c); f.State != Running {
		t.Fatalf("a sweep ended a container that has a pod: %+v", f)
	}
	g.links.remove(g.pod).shut() // or another monitor is started for the pod
	g.ok(g.Sweep(t.Context(), func(string) bool { return false }, handler))
	if left, _ := filepath.Glob(filepath.Join(g.handler.Root, "*.state")); len(left) > 0 {
		t.Errorf("after a sweep there is %v", left)
	}
}
