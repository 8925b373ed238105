package runtime

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/timeouts"
	"berth/test/volume"
)

// syncBuffer is a buffer that is written to while it is read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestLogFormat(t *testing.T) {
	g := newRig(t)
	// The long line is written at once: a part of it that waits for the rest goes into an entry of its own.
	ctr := g.run("echo out; echo err >&2; head -c 40000 /dev/zero | tr '\\0' a >/tmp/long; echo >>/tmp/long; " +
		"dd if=/tmp/long bs=64k count=1 2>/dev/null; echo; printf end")
	g.exit(ctr)
	var got []string
	last := time.Time{}
	for _, e := range entries(t, g.logged(ctr)) {
		got = append(got, fmt.Sprintf("%s %s %d", e.stream, e.tag, len(e.text)))
		if e.at.Before(last) && e.stream == "stdout" {
			t.Errorf("%v is after %v", e.at, last)
		}
		if e.stream == "stdout" {
			last = e.at
		}
	}
	var out []string
	for _, s := range got {
		if strings.HasPrefix(s, "stdout") {
			out = append(out, s)
		}
	}
	want := []string{"stdout F 3", "stdout P 16384", "stdout P 16384", "stdout F 7232", "stdout F 0", "stdout P 3"}
	if strings.Join(out, "\n") != strings.Join(want, "\n") || len(got) != len(want)+1 {
		t.Errorf("got %v, wanted %v and one of stderr", got, want)
	}
}

// TestPrompt checks that a line which does not end soon is in the log all the same, and whole when put together.
func TestPrompt(t *testing.T) {
	g := newRig(t)
	ctr := g.run("printf 'Password: '; read x; echo given; sleep 1000", func(c *Create) { c.Stdin = true })
	g.within(5*time.Second, "the prompt is in the log", func() bool {
		return strings.HasSuffix(g.logged(ctr), " stdout P Password: \n")
	})
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("secret\n"), 0))
	g.hasSaid(ctr, "Password: given\n")
}

// TestLogBitExact has a container write 100 MB in lines of all lengths.
func TestLogBitExact(t *testing.T) {
	rounds := 65
	if len(monitorFlags) > 0 {
		rounds = 10 // the race detector takes its time
	}
	g := newRig(t)
	ctr := g.run("dd if=/dev/zero bs=1M count=1 2>/dev/null | tr '\\0' x >/tmp/long; echo >>/tmp/long; seq 1 100000 " +
		">/tmp/short; " +
		"" +
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do cat /tmp/long /tmp/short; i=$((i+1)); done", rounds))
	g.within(2*time.Minute, "it is through", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.exits[ctr]) > 0
	})
	var round bytes.Buffer
	round.WriteString(strings.Repeat("x", 1<<20) + "\n")
	for i := range 100000 {
		fmt.Fprintln(&round, i+1)
	}
	want, got := sha256.New(), sha256.New()
	for range rounds {
		want.Write(round.Bytes())
	}
	n := 0
	for line := range strings.Lines(g.logged(ctr)) {
		f := strings.SplitN(line, " ", 4)
		text := f[3]
		if f[2] == "P" {
			text = text[:len(text)-1]
		}
		n += len(text)
		got.Write([]byte(text))
	}
	if !bytes.Equal(want.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes are in the log, not the %d that were written, or others", n, rounds*round.Len())
	}
}

// TestMemoryAfterFlood checks that many small lines cost a monitor nothing that stays.
func TestMemoryAfterFlood(t *testing.T) {
	if len(monitorFlags) > 0 {
		t.Skip("the race detector has a memory of its own")
	}
	g := newRig(t)
	g.run("sleep 1000")
	before := rollup(g, "Anonymous")
	ctr := g.run("yes '' | head -n 3000000")
	g.within(30*time.Second, "it is through", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.exits[ctr]) > 0
	})
	if after := rollup(g, "Anonymous"); after > before+500 {
		t.Errorf("its own memory went from %d kB to %d kB", before, after)
	}
}

func TestReopenLog(t *testing.T) {
	g := newRig(t)
	ctr := g.run("i=0; while :; do echo line $i; i=$((i+1)); usleep 1000; done")
	g.hasSaid(ctr, "line 20\n")
	path := filepath.Join(g.logs, g.log(ctr).Path)
	g.ok(os.Rename(path, path+".1"))
	g.ok(g.ReopenLog(t.Context(), g.pod, ctr, g.log(ctr)))
	g.within(5*time.Second, "the new file fills", func() bool { return strings.Count(g.said(ctr), "\n") > 20 })
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	g.exit(ctr)
	old := g.must(os.ReadFile(path + ".1")).([]byte)
	for i, e := range entries(t, string(old)+g.logged(ctr)) {
		if e.text != fmt.Sprintf("line %d", i) && e.tag == "F" {
			t.Fatalf("entry %d of both files is %+v", i, e)
		}
	}
	if err := g.ReopenLog(t.Context(), g.pod, ctr, Log{Dir: g.logs, Path: "other/0.log"}); err == nil {
		t.Error("the log of a container that has ended was opened")
	}
	if _, err := os.Stat(filepath.Join(g.logs, "other/0.log")); err == nil {
		t.Error("a reopening that failed made a file")
	}
}

// TestReopenOnASlowDisk has a log be reopened on a disk that hangs for longer than a monitor's silence is borne: the
// reopening waits for it. One whose caller has given up, and has renamed the old log back, leaves that in use.
func TestReopenOnASlowDisk(t *testing.T) {
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprintf("patient=%v", patient), func(t *testing.T) {
			g := newRig(t)
			volume.Mounted(t, g.logs, volume.Ext4, 64)
			ctr := g.run("i=0; while [ $i -lt 8000 ]; do echo line $i.; echo err $i. >&2; i=$((i+1)); usleep 1000; done; exit 3")
			g.hasSaid(ctr, "line 20.\n")
			path := filepath.Join(g.logs, g.log(ctr).Path)
			g.ok(os.Rename(path, path+".1"))
			thaw, err := volume.Freeze(g.logs)
			g.ok(err)
			thaw = sync.OnceValue(thaw)
			t.Cleanup(func() { _ = thaw() })
			ctx, cancel := context.WithCancel(t.Context())
			reopened := make(chan error, 1)
			go func() { reopened <- g.ReopenLog(ctx, g.pod, ctr, g.log(ctr)) }()
			select {
			case err := <-reopened:
				t.Fatalf("the reopening does not wait for the disk: %v", err)
			case <-time.After(quickTimeout + time.Second):
			}
			if patient {
				g.ok(thaw())
				g.ok(<-reopened)
			} else {
				cancel()
				if err := <-reopened; err == nil {
					t.Error("the caller had given up")
				}
				g.ok(thaw())
				g.ok(os.Rename(path+".1", path))
			}
			cancel()
			g.whole(ctr, 8000)
		})
	}
}

// TestLogThatIsReplaced has the old log be renamed back over the new one after a reopening that its caller took for
// failed: it goes on in the file that has its name.
func TestLogThatIsReplaced(t *testing.T) {
	g := newRig(t)
	ctr := g.run("i=0; while :; do echo line $i; i=$((i+1)); usleep 1000; done")
	g.hasSaid(ctr, "line 20\n")
	path := filepath.Join(g.logs, g.log(ctr).Path)
	g.rotate(ctr, 1)
	g.hasSaid(ctr, "line ")
	g.ok(os.Rename(path+".0001", path))
	before := g.said(ctr)
	g.within(10*time.Second, "it goes on there", func() bool { return len(g.said(ctr)) > len(before)+1000 })
	g.ok(os.Remove(path)) // a log that somebody removes is not made anew
	time.Sleep(2 * openPauseOfLogs)
	if _, err := os.Stat(path); err == nil {
		t.Error("a log that was removed is there again")
	}
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	g.exit(ctr)
}

// openPauseOfLogs is from try to try of a monitor to open a log.
const openPauseOfLogs = time.Second

// TestLogPaths checks that no log leaves its directory.
func TestLogPaths(t *testing.T) {
	g := newRig(t)
	outside := filepath.Join(filepath.Dir(g.logs), "outside")
	g.ok(os.Mkdir(outside, 0o755))
	g.ok(os.Symlink(outside, filepath.Join(g.logs, "link")))
	g.ok(os.Symlink(filepath.Join(outside, "f"), filepath.Join(g.logs, "file")))
	ctr := g.create("echo escaped")
	for _, path := range []string{"../outside/f", outside + "/f", "link/f", "file", "a/../../outside/f", "."} {
		if err := g.Start(t.Context(), g.pod, ctr, Log{Dir: g.logs, Path: path}, deadline); err == nil {
			t.Fatalf("a log at %s was opened", path)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("outside of the log directory there are %v", left)
	}
	g.ok(g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline))
	g.exit(ctr)
	if got := g.said(ctr); got != "escaped\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestAttach has a client that reads, which gets all, and one that does not, which is dropped. There is room for a
// quarter of the output before either has read anything, and not for all.
func TestAttach(t *testing.T) {
	g := newRig(t)
	ctr := g.run("for i in 0 1 2 3; do read go; seq $((i*50000+1)) $((i*50000+50000)); done; echo err >&2",
		func(c *Create) { c.Stdin = true })
	in, typed := io.Pipe()
	good, errs, slow := &syncBuffer{}, &syncBuffer{}, make(stuck)
	ready := make(chan struct{}, 2)
	ended, dropped := make(chan error, 1), make(chan error, 1)
	at := func() { ready <- struct{}{} }
	go func() {
		dropped <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdout: slow, Ready: at})
	}()
	<-ready
	go func() {
		ended <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdin: in, Stdout: good, Stderr: errs, Ready: at})
	}()
	<-ready
	for _, last := range []string{"\n50000\n", "\n100000\n", "\n150000\n", "\n200000\n"} {
		g.must(typed.Write([]byte("\n")))
		g.within(30*time.Second, "the client has what was asked for", func() bool {
			return strings.HasSuffix(good.String(), last)
		})
	}
	if e := g.exit(ctr); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	g.ok(<-ended)
	close(slow)
	if err := <-dropped; !errors.Is(err, ErrSlow) {
		t.Errorf("the client that did not read is told %v", err)
	}
	lines := strings.Count(good.String(), "\n")
	if lines != 200000 || !strings.HasSuffix(good.String(), "\n200000\n") || errs.String() != "err\n" {
		t.Errorf("the good client got %d lines and %q", lines, errs.String())
	}
	if got := strings.Count(g.said(ctr), "\n"); got != 200001 {
		t.Errorf("%d lines are in the log", got)
	}
}

// TestAttachedInputOutlivesTheOutput has a client that is behind with the output, and whose input goes on all the same.
func TestAttachedInputOutlivesTheOutput(t *testing.T) {
	g := newRig(t)
	ctr := g.run("read go; seq 400000; cat; exit 6", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	in, typed := io.Pipe()
	slow, behind, ended := make(stuck), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- g.Attach(ctx, g.pod, ctr, Attach{Stdin: in, Stdout: slow, Behind: func() { close(behind) }})
	}()
	g.must(typed.Write([]byte("\n"))) // which is read once it is attached
	g.within(30*time.Second, "the output is in the log", func() bool {
		return strings.Contains(g.said(ctr), "\n400000\n")
	})
	close(slow)
	<-behind
	g.must(typed.Write([]byte("typed later\n")))
	g.ok(typed.Close())
	if e := g.exit(ctr); e.Code != 6 {
		t.Errorf("exit %+v", e)
	}
	if !strings.HasSuffix(g.said(ctr), "\ntyped later\n") {
		t.Error("what was typed did not reach the container")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the attachment ended with %v", err)
	}
}

// stuck is a writer that does not come back before it is closed.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) { <-s; return len(p), nil }

func TestStdinOnce(t *testing.T) {
	g := newRig(t)
	ctr := g.run("cat; echo END; exit 6", func(c *Create) { c.Stdin, c.StdinOnce = true, true })
	out := &syncBuffer{}
	g.ok(g.Attach(t.Context(), g.pod, ctr, Attach{Stdin: strings.NewReader("a\nb\n"), Stdout: out}))
	if out.String() != "a\nb\nEND\n" {
		t.Errorf("the client got %q", out.String())
	}
	if e := g.exit(ctr); e.Code != 6 {
		t.Errorf("exit %+v", e)
	}
}

// TestInputOfNone attaches clients with more input than anything holds to containers that have none: it is thrown away,
// and the clients get the output until its end.
func TestInputOfNone(t *testing.T) {
	g := newRig(t)
	for _, tty := range []bool{false, true} {
		ctr := g.run("sleep 1000", func(c *Create) { c.Terminal = tty })
		r, w := io.Pipe()
		attached := make(chan error, 1)
		go func() {
			attached <- g.Attach(t.Context(), g.pod, ctr, Attach{Stdin: r, Stdout: &syncBuffer{}})
		}()
		late := time.AfterFunc(timeouts.For(20*time.Second), func() { _ = r.CloseWithError(errors.New("nobody reads it")) })
		if _, err := w.Write(make([]byte, 4<<20)); err != nil {
			t.Errorf("with a terminal %v, the input: %v", tty, err)
		}
		late.Stop()
		g.ok(g.KillAll(t.Context(), g.pod, ctr))
		g.ok(<-attached)
		_ = w.Close()
	}
}

func TestTerminal(t *testing.T) {
	g := newRig(t)
	ctr := g.run("stty size; read x; stty size; echo to-err >&2; exit 2", func(c *Create) {
		c.Terminal, c.Stdin = true, true
	})
	g.hasSaid(ctr, "\n")
	g.ok(g.Resize(t.Context(), g.pod, ctr, 101, 33))
	out := &syncBuffer{}
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(40*time.Second))
	defer cancel()
	g.ok(g.Attach(ctx, g.pod, ctr, Attach{Stdin: strings.NewReader("\n"), Stdout: out}))
	if e := g.exit(ctr); e.Code != 2 {
		t.Errorf("exit %+v", e)
	}
	if !strings.Contains(out.String(), "33 101\r\nto-err\r\n") || !strings.Contains(g.said(ctr), "33 101\r\nto-err") {
		t.Errorf("the client got %q, the log %q", out.String(), g.said(ctr))
	}
}
