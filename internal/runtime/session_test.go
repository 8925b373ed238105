package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// session runs a script with somebody at its streams.
func (g *rig) session(ctx context.Context, ctr, script string, tty bool, s Session) (int, error) {
	s.Process = shellProcess(script)
	s.Process.Terminal = tty
	return g.Session(ctx, g.pod, ctr, s)
}

// sessionsLeft are the files and cgroups of execs in a container's directories.
func (g *rig) sessionsLeft(ctr string) []string {
	files, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, ctr), "process-*"))
	execs, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, ctr), "exec-*"))
	groups, _ := filepath.Glob(filepath.Join(g.cfg.containerGroup(ctr).Path(), "exec-*"))
	return append(append(files, execs...), groups...)
}

func (g *rig) nothingLeft(ctr string) {
	g.Helper()
	g.within(5*time.Second, "nothing is left of the sessions", func() bool { return len(g.sessionsLeft(ctr)) == 0 })
}

func TestSession(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	out, errs := &syncBuffer{}, &syncBuffer{}
	code, err := g.session(t.Context(), ctr, "cat; echo END; echo err >&2; kill -TERM $$", false,
		Session{Stdin: strings.NewReader("a\nb\n"), Stdout: out, Stderr: errs})
	if err != nil || code != 143 || out.String() != "a\nb\nEND\n" || errs.String() != "err\n" {
		t.Errorf("code %d, %v, stdout %q, stderr %q", code, err, out, errs)
	}
	// Nobody wants anything of it.
	if code, err := g.session(t.Context(), ctr, "cat; echo x; echo y >&2; exit 4", false, Session{}); code != 4 ||
		err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	if _, err := g.session(t.Context(), ctr, "", true, Session{}); err != nil {
		t.Error(err)
	}
	bad := shellProcess("")
	bad.Args = []string{"/no/such"}
	for _, bad.Terminal = range []bool{false, true} {
		if _, err := g.Session(t.Context(), g.pod, ctr, Session{Process: bad}); err == nil ||
			!strings.Contains(err.Error(), "/no/such") {
			t.Errorf("a program that is not there: %v", err)
		}
	}
	g.nothingLeft(ctr)
}

// refusing is an input without an end, and tells when it is no longer taken.
type refusing struct{ refused chan error }

func (r refusing) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

func (r refusing) WriteTo(w io.Writer) (n int64, err error) {
	for piece := make([]byte, 4<<10); err == nil; {
		var m int
		m, err = w.Write(piece)
		n += int64(m)
	}
	r.refused <- err
	return n, err
}

// TestSessionThatClosesItsInput has a command close its input and go on: who sends to it is told, long before its end.
func TestSessionThatClosesItsInput(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, ended := refusing{make(chan error, 1)}, make(chan error, 1)
	go func() {
		_, err := g.session(ctx, ctr, "exec 0<&-; while :; do echo x; usleep 100000; done", false,
			Session{Stdin: in, Stdout: io.Discard})
		ended <- err
	}()
	select {
	case err := <-in.refused:
		if !errors.Is(err, unix.EPIPE) {
			t.Error(err)
		}
	case err := <-ended:
		t.Errorf("it has ended: %v", err)
	case <-time.After(timeouts.For(20 * time.Second)):
		t.Error("nobody is told")
	}
	cancel()
	<-ended
	g.nothingLeft(ctr)
}

// TestInputThatIsNoLongerTaken has clients send more than anything holds to what has closed its input, or its terminal,
// and goes on: it is thrown away, and holds up no client.
func TestInputThatIsNoLongerTaken(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	once := g.run("read line; exec 0<&-; sleep 1000", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended []<-chan error
	client := func(what string, play func(in io.Reader) error) *io.PipeWriter {
		r, w := io.Pipe()
		end := make(chan error, 1)
		ended = append(ended, end)
		go func() { end <- play(r) }()
		late := time.AfterFunc(timeouts.For(30*time.Second), func() {
			_ = r.CloseWithError(fmt.Errorf("nobody reads what is sent to %s", what))
		})
		t.Cleanup(func() { late.Stop(); _ = w.Close() })
		return w
	}
	send := func(w *io.PipeWriter) {
		t.Helper()
		if _, err := w.Write(make([]byte, 4<<20)); err != nil {
			t.Error(err)
		}
	}
	for _, tty := range []bool{false, true} {
		send(client("a command", func(in io.Reader) error {
			_, err := g.session(ctx, ctr, "exec 0<&- >&- 2>&-; sleep 1000", tty, Session{Stdin: in, Stdout: io.Discard})
			return err
		}))
	}
	attach := func(in io.Reader) error { return g.Attach(ctx, g.pod, once, Attach{Stdin: in}) }
	first, second := client("a container", attach), client("a container", attach)
	g.must(second.Write([]byte("\n"))) // both have it open
	g.must(first.Write([]byte("\n")))
	g.ok(first.Close())
	g.within(5*time.Second, "the monitor closes the input", func() bool {
		b, err := g.cfg.bundleOf(g.pod, once)
		return err == nil && b.StdinClosed
	})
	send(second)
	cancel()
	for _, end := range ended {
		<-end
	}
	g.nothingLeft(ctr)
}

// TestSessionThatReadsSlowly gives a client that takes its time all that the process wrote, though that has long ended.
func TestSessionThatReadsSlowly(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for _, tty := range []bool{false, true} {
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			_, err := g.session(t.Context(), ctr, "i=0; while [ $i -lt 50 ]; do echo $i; i=$((i+1)); done", tty,
				Session{Stdout: w})
			_ = w.Close()
			ended <- err
		}()
		time.Sleep(drainTime + time.Second)
		data := g.must(io.ReadAll(r)).([]byte)
		if text := strings.ReplaceAll(string(data), "\r", ""); strings.Count(text, "\n") != 50 ||
			!strings.HasSuffix(text, "\n49\n") {
			t.Errorf("terminal %v: the client got %q", tty, data)
		}
		g.ok(<-ended)
	}
}

func TestSessionTerminal(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	in, typed := io.Pipe()
	sizes := make(chan [2]uint16, 2)
	sizes <- [2]uint16{101, 33}
	out, ended := &syncBuffer{}, make(chan error, 1)
	var asked atomic.Int32 // what was told before is set when it is asked again
	go func() {
		code, err := g.session(t.Context(), ctr, "tty; read x; stty size; read x; stty size; read x; echo end; exit 5", true,
			Session{
				Stdin: in, Stdout: out, Resize: func() (uint16, uint16, bool) {
					asked.Add(1)
					s, ok := <-sizes
					return s[0], s[1], ok
				},
			})
		if code != 5 && err == nil {
			err = errors.New("another exit code")
		}
		ended <- err
	}()
	g.within(5*time.Second, "it has a terminal", func() bool { return strings.Contains(out.String(), "/dev/pts/") })
	g.within(5*time.Second, "the size was taken", func() bool { return asked.Load() == 2 })
	_, _ = typed.Write([]byte("\n"))
	g.within(5*time.Second, "the first size", func() bool { return strings.Contains(out.String(), "33 101\r\n") })
	sizes <- [2]uint16{80, 24}
	for _, none := range [][2]uint16{{}, {0, 25}, {81, 0}} {
		sizes <- none
	}
	g.within(5*time.Second, "the sizes were taken", func() bool { return asked.Load() == 6 })
	_, _ = typed.Write([]byte("\n"))
	g.within(5*time.Second, "the second size", func() bool { return strings.Contains(out.String(), "24 80\r\n") })
	_ = typed.Close() // the end of the input ends the last read
	g.ok(<-ended)
	close(sizes)
	if !strings.HasSuffix(out.String(), "end\r\n") {
		t.Errorf("the client got %q", out)
	}
	g.nothingLeft(ctr)
}

// TestShortSessions has the last words of processes that end at once arrive.
func TestShortSessions(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for i := range 20 {
		out := &syncBuffer{}
		code, err := g.session(t.Context(), ctr, "echo word", i%2 == 0, Session{Stdout: out})
		if code != 0 || err != nil || strings.TrimSpace(out.String()) != "word" {
			t.Errorf("code %d, %v, %q", code, err, out)
		}
	}
	g.nothingLeft(ctr)
}

// TestSessionThatLeavesAChild checks that a child which holds the streams does not hang the call.
func TestSessionThatLeavesAChild(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for _, tty := range []bool{false, true} {
		began, out := time.Now(), &syncBuffer{}
		if _, err := g.session(t.Context(), ctr, "trap '' HUP; sleep 1001 & echo hi", tty,
			Session{Stdout: out}); err != nil || !strings.HasPrefix(out.String(), "hi") {
			t.Errorf("terminal %v: %v, %q", tty, err, out)
		}
		if took := time.Since(began); took > drainTime+timeouts.For(30*time.Second) {
			t.Errorf("terminal %v: after %v", tty, took)
		}
	}
	g.within(5*time.Second, "the child lives", func() bool { return g.alive("sleep", "1001") })
}

// TestSessionWhoseClientGoes has every kind of process end, by itself or by force.
func TestSessionWhoseClientGoes(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for name, c := range map[string]struct {
		script string
		tty    bool
		most   time.Duration
	}{
		"reads":    {script: "echo on; cat; exec true", most: hangupGrace - time.Second},
		"writes":   {script: "while echo on; do sleep 0.1; done", most: hangupGrace - time.Second},
		"terminal": {script: "echo on; sleep 2001", tty: true, most: hangupGrace - time.Second},
		"neither": {script: "trap '' HUP PIPE; echo on; sleep 2002 & setsid sleep 2003; wait",
			most: hangupGrace + timeouts.For(20*time.Second)},
		"not terminal": {script: "trap '' HUP; echo on; setsid sh -c 'trap \"\" HUP; sleep 2004' & wait; sleep 2005",
			tty: true, most: hangupGrace + timeouts.For(20*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			r, w := io.Pipe()
			in, _ := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				_, err := g.session(ctx, ctr, c.script, c.tty, Session{Stdin: in, Stdout: w})
				ended <- err
			}()
			_, err := r.Read(make([]byte, 2))
			g.ok(err)
			began := time.Now()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("it ends with %v", err)
			}
			if took := time.Since(began); took > c.most {
				t.Errorf("it took %v", took)
			}
			_ = r.Close()
		})
	}
	t.Cleanup(func() {
		for _, n := range []string{"2001", "2002", "2003", "2004", "2005"} {
			// What is hung up ends by itself, which nobody waits for.
			g.within(5*time.Second, "sleep "+n+" has ended", func() bool { return !g.alive("sleep", n) })
		}
		g.nothingLeft(ctr)
	})
}

// TestSessionWhoseDaemonGoes has the monitor alone end what nobody is at any more.
func TestSessionWhoseDaemonGoes(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	out, ended := &syncBuffer{}, make(chan error, 1)
	go func() {
		_, err := g.session(t.Context(), ctr, "echo on; sleep 3001", false, Session{Stdout: out})
		ended <- err
	}()
	g.within(5*time.Second, "it runs", func() bool { return out.String() == "on\n" && g.alive("sleep", "3001") })
	c := g.must(g.links.monitor(t.Context(), g.pod)).(*client)
	c.end()
	if err := <-ended; err == nil {
		t.Error("it ended well")
	}
	if !g.alive("sleep", "3001") {
		t.Error("it was killed at once")
	}
	g.within(hangupGrace+5*time.Second, "it is killed", func() bool { return !g.alive("sleep", "3001") })
	g.must(g.links.get(g.pod).connect(t.Context()))
}

// TestSessionsLeaveNoDescriptor counts them.
func TestSessionsLeaveNoDescriptor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	run := func(tty bool) {
		if _, err := g.session(t.Context(), ctr, "echo x", tty,
			Session{Stdin: strings.NewReader("y"), Stdout: io.Discard}); err != nil {
			t.Error(err)
		}
	}
	count := func() int {
		n := len(g.must(os.ReadDir("/proc/" + strconv.Itoa(g.monitor()) + "/fd")).([]os.DirEntry))
		return n
	}
	run(false)
	run(true)
	before := count()
	for i := range 10 {
		run(i%2 == 0)
	}
	g.within(5*time.Second, "the monitor closes what it was given", func() bool { return count() <= before })
}

// TestAttachedClientsGo has clients that go leave nothing in the way of others, and close an input that was meant for
// one.
func TestAttachedClientsGo(t *testing.T) {
	g := newRig(t)
	ctr := g.run("cat; echo END; exit 6", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	ctx, cancel := context.WithCancel(t.Context())
	in, typed := io.Pipe()
	out, watching := &syncBuffer{}, &syncBuffer{}
	left, watched, ready := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() {
		watched <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdout: watching, Ready: func() { close(ready) }})
	}()
	<-ready
	go func() { left <- g.Attach(ctx, g.pod, ctr, Attach{Stdin: in, Stdout: out}) }()
	_, _ = typed.Write([]byte("a\n"))
	g.within(5*time.Second, "both get it", func() bool { return out.String() == "a\n" && watching.String() == "a\n" })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that went is told %v", err)
	}
	_ = typed.Close()
	g.ok(<-watched)
	if e := g.exit(ctr); e.Code != 6 || watching.String() != "a\nEND\n" {
		t.Errorf("exit %+v, and the other client got %q", e, watching)
	}
}

// TestAttachedInputThatNobodyReads ends with its client, though a write waits.
func TestAttachedInputThatNobodyReads(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000", func(c *Create) { c.Stdin = true })
	in, typed := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Attach(ctx, g.pod, ctr, Attach{Stdin: in}) }()
	full := make(chan struct{})
	go func() {
		defer close(full)
		for range 100 {
			if _, err := typed.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	select {
	case <-full:
		t.Error("the FIFO took 400 kB")
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	<-ended
	_ = in.Close()
	<-full
}

// TestTerminalOfASlowRuntime has a runtime call long before it sends the terminal, as on a busy node.
func TestTerminalOfASlowRuntime(t *testing.T) {
	t.Parallel()
	dir, e, out := t.TempDir(), &ends{}, &syncBuffer{}
	defer e.hangUp()
	name, err := e.listen(dir, "process.json")
	if err != nil {
		t.Fatal(err)
	}
	go e.terminal(Session{Stdout: out})
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.Sleep(masterTimeout + time.Second)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := conn.WriteMsgUnix([]byte("console"), unix.UnixRights(int(r.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	_, _ = w.WriteString("made after all\n")
	_ = w.Close()
	if err := e.deliver(t.Context()); err != nil || out.String() != "made after all\n" {
		t.Errorf("the client got %q, %v", out, err)
	}
}

// TestTerminalThatIsNeverSent has a runtime call, and return without a terminal.
func TestTerminalThatIsNeverSent(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*ends){"drained": func(e *ends) {
		_ = e.deliver(t.Context())
	}, "hung up": (*ends).hangUp} {
		dir, e := t.TempDir(), &ends{}
		defer e.hangUp()
		socket, err := e.listen(dir, "process.json")
		if err != nil {
			t.Fatal(err)
		}
		go e.terminal(Session{})
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, socket), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go end(e)
		select {
		case <-e.taken:
		case <-time.After(masterTimeout + timeouts.For(10*time.Second)):
			t.Errorf("%s: it is still waited for", name)
		}
	}
}
