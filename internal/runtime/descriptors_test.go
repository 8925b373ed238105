package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/test/timeouts"
)

// leave lets the monitor open so many descriptors beside those that it has, until the end of the test.
func (g *rig) leave(room int) (undo func()) {
	g.Helper()
	pid := g.monitor()
	used := map[string]bool{}
	for _, e := range g.must(os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")).([]os.DirEntry) {
		used[e.Name()] = true
	}
	most := 0
	for ; room > 0 || len(used) > 0; most++ {
		if name := strconv.Itoa(most); used[name] {
			delete(used, name)
		} else {
			room--
		}
		if room < 0 {
			break
		}
	}
	return g.bound(most)
}

// bound lets the monitor open no descriptor from a number on, and keep those that it has, until undo is called.
func (g *rig) bound(most int) (undo func()) {
	g.Helper()
	pid := g.monitor()
	var was unix.Rlimit
	g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(most), Max: was.Max}, nil))
	return func() { g.ok(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }
}

// TestExecWithoutDescriptors has a monitor have no descriptor left when the runtime has begun an exec, for a moment: it
// goes on, and ends in its time. One that is given up because the lack lasts is ended as soon as that is possible.
func TestExecWithoutDescriptors(t *testing.T) {
	g := newRig(t)
	path := g.program("slow", "case \"$*\" in *\" exec \"*) "+host.runtime+" \"$@\"; code=$?; : >$0.here; "+
		"while [ ! -e $0.go ]; do sleep 0.01; done; exit $code;; esac\nexec "+host.runtime+" \"$@\"\n")
	ctr := g.run("sleep 1000", func(c *Create) { c.Handler.Path = path })
	type result struct {
		ExecResult
		err error
	}
	ended := make(chan result, 1)
	begin := func(script string) (undo func()) {
		_, _ = os.Remove(path+".here"), os.Remove(path+".go")
		go func() {
			e := Exec{Process: shellProcess(script), Timeout: timeouts.For(5 * time.Second)}
			res, err := g.Exec(t.Context(), g.pod, ctr, e)
			ended <- result{res, err}
		}()
		g.within(5*time.Second, "the exec is begun", func() bool { return exists(path + ".here") })
		undo = g.bound(0)
		g.ok(os.WriteFile(path+".go", nil, 0o600))
		return undo
	}

	undo := begin("sleep 4201; sleep 4202")
	time.Sleep(300 * time.Millisecond)
	undo()
	if r := <-ended; r.err != nil || !r.TimedOut || g.alive("sleep", "4201") || g.alive("sleep", "4202") {
		t.Errorf("it ends with %+v, and lives: %v", r, g.alive("sleep", "4201"))
	}

	undo = begin("sleep 4203")
	time.Sleep(2500 * time.Millisecond) // more than the monitor tries for
	undo()
	if r := <-ended; !errors.Is(r.err, unix.EMFILE) && !r.TimedOut || g.alive("sleep", "4203") {
		t.Errorf("it ends with %+v, and lives: %v", r, g.alive("sleep", "4203"))
	}
}

// TestMonitorWithoutDescriptors has a monitor be given descriptors for which it has no room: it says so, and does not
// go on with those that came.
func TestMonitorWithoutDescriptors(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for room := range 3 {
		undo := g.leave(room)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		err := g.Attach(ctx, g.pod, ctr, Attach{Stdout: io.Discard})
		cancel()
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with room for %d of 3 an attachment ends with %v", room, err)
		}
		out := &syncBuffer{}
		res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("echo hi"), Stdout: out})
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("with room for %d of 3 an exec ends with %+v, %q, %v", room, res, out, err)
		}
		undo()
	}
	if out, code := g.exec(ctr, "echo hi"); out != "hi\n" || code != 0 {
		t.Errorf("with room again: code %d, %q", code, out)
	}
}

// TestTakeoverWithoutDescriptors has monitors take over that lack descriptors for as long as they live: one to hold the
// process, one for the input, and one to read the output. None goes on with what it could take up, and the first
// that has enough takes up all.
func TestTakeoverWithoutDescriptors(t *testing.T) {
	g := newRig(t)
	ctr := g.run("i=0; while ! [ -e /tmp/go ]; do echo line $i; i=$((i+1)); usleep 20000; done; exit 3",
		func(c *Create) { c.Stdin = true })
	g.hasSaid(ctr, "line 3\n")
	go func() {
		_, _ = g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("sleep 4204"), Timeout: time.Hour})
	}()
	g.within(5*time.Second, "the exec runs", func() bool { return g.alive("sleep", "4204") })
	few := filepath.Join(g.logs, "few")
	g.ok(os.WriteFile(few, []byte("13 12 10"), 0o600))
	g.cfg.Monitor = g.program("monitor", fmt.Sprintf("read n rest <%[1]s; echo $rest >%[1]s\n"+
		"[ -z \"$n\" ] || ulimit -n $n\nexec %[2]s \"$@\"\n", few, host.monitor))
	g.ok(unix.Kill(g.monitor(), unix.SIGKILL))
	g.within(time.Minute, "one takes over that has enough", func() bool {
		left := g.must(os.ReadFile(few)).([]byte)
		list, err := g.links.get(g.pod).connect(g.Context())
		return string(left) == "\n" && err == nil && len(list) == 1 && list[0].State == Running
	})
	g.within(5*time.Second, "the exec has ended", func() bool { return !g.alive("sleep", "4204") })
	was := strings.Count(g.said(ctr), "line ")
	g.within(10*time.Second, "the log goes on", func() bool { return strings.Count(g.said(ctr), "line ") > was+3 })
	g.letEnd(ctr, 3)
	for i, line := range strings.Split(strings.TrimSpace(g.said(ctr)), "\n") {
		if line != fmt.Sprint("line ", i) {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	said := string(g.must(os.ReadFile(filepath.Join(g.cfg.dir(g.pod), "m.log"))).([]byte))
	if n := strings.Count(said, "take over "+ctr+": "); n != 3 {
		t.Errorf("%d monitors have ended:\n%s", n, said)
	}
}

// fill leaves this process so many descriptors, until it may have all of them again.
func fill(t *testing.T, room int) (undo func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	var all []int
	undo = func() {
		for _, fd := range all {
			_ = unix.Close(fd)
		}
		all = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		all = append(all, fd)
	}
	if len(all) < room {
		undo()
		t.Fatalf("this process has room for %d descriptors", len(all))
	}
	for range room {
		_ = unix.Close(all[len(all)-1])
		all = all[:len(all)-1]
	}
	return undo
}

// TestDaemonWithoutDescriptors has the daemon have no descriptors, or too few, for what it holds of containers. It
// holds all of that when it has them: containers lose nothing by the death of their monitor then.
func TestDaemonWithoutDescriptors(t *testing.T) {
	g := newQuietRig(t) // alone: the limit is the whole process's
	t.Cleanup(g.clear)
	once := g.run("cat; echo END; exit 6", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	tty := g.run("while read line; do echo got $line; done; exit 7", func(c *Create) { c.Terminal, c.Stdin = true, true })
	over := g.run("cat; echo END; exit 6", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	l := g.links.get(g.pod)
	hold := func(room int) {
		t.Helper()
		c, list := l.live(), g.must(l.connect(t.Context())).([]wire.Container)
		defer fill(t, room)()
		for _, e := range list {
			hold(t.Context(), l, c, e)
		}
	}
	for room := range 8 {
		for _, ctr := range []string{once, tty, over} {
			l.handles.forget(ctr)
		}
		hold(room)
		if !l.handles.lack() {
			t.Fatalf("with room for %d descriptors none is lacking", room)
		}
		l.handles.endStdin(over)
		hold(1)
		lookAt(t.Context(), l)
		if l.handles.lack() {
			t.Fatalf("with all descriptors something lacks after there was room for %d", room)
		}
		h, o := l.handles.of[once], l.handles.of[over]
		if h.pidfd == nil || h.stdin == nil || len(h.output) != 2 || l.handles.of[tty].console == nil || o.stdin != nil {
			t.Fatalf("after room for %d: %+v, %+v, %+v", room, h, l.handles.of[tty], o)
		}
	}
	g.killMonitor()
	if f, _ := g.found(once); f.State != Running || g.said(once) != "" {
		t.Errorf("the one that waits for its client is %+v, and has said %q", f, g.said(once))
	}
	if e := g.exit(over); e.Code != 6 {
		t.Errorf("the one whose input has ended: %+v", e)
	}
	g.ok(g.Attach(t.Context(), g.pod, once, Attach{Stdin: strings.NewReader("all\n")}))
	if e := g.exit(once); e.Code != 6 || g.said(once) != "all\nEND\n" {
		t.Errorf("its exit is %+v, and it has said %q", e, g.said(once))
	}
	g.ok(unixWrite(g.must(g.Console(t.Context(), g.pod, tty)).(*os.File), "line\n"))
	g.hasSaid(tty, "got line")
}
