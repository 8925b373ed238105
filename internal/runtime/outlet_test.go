package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/test/timeouts"
)

// TestOutletReadLate has no time left for what was written while nobody read, and a child that holds the pipe.
func TestOutletReadLate(t *testing.T) {
	for range 200 {
		var got bytes.Buffer
		o, err := newOutlet(&got)
		if err != nil {
			t.Fatal(err)
		}
		held, err := duplicate(o.theirs)
		if err != nil {
			t.Fatal(err)
		}
		wrote := bytes.Repeat([]byte("x"), 48<<10)
		if _, err := o.theirs.Write(wrote); err != nil {
			t.Fatal(err)
		}
		left, err := o.finish(time.Unix(1, 0))
		if err != nil || left == nil {
			t.Fatalf("finish: %v, %v, though a process holds the stream", left, err)
		}
		_, _ = held.Close(), left.Close()
		if !bytes.Equal(got.Bytes(), wrote) {
			t.Fatalf("%d of %d bytes are there", got.Len(), len(wrote))
		}
	}
}

// ticker is a script that leaves a child which writes to both streams ten times a second. How often it has written
// without being killed is in the file.
func ticker(file string) string {
	return fmt.Sprintf("(i=0; while :; do echo tick; echo tock >&2; i=$((i+1)); echo $i > %s; sleep 0.1; done) & echo hi",
		file)
}

// ticks is how often the child of ticker has written to both streams.
func ticks(file string) (n int) {
	data, _ := os.ReadFile(file)
	_, _ = fmt.Sscan(string(data), &n)
	return n
}

// goesOn waits until a ticker has written several times more.
func (g *rig) goesOn(what, file string) {
	g.Helper()
	from := ticks(file)
	g.within(10*time.Second, what, func() bool { return ticks(file) > from+3 })
}

// TestLeftWriterLives lets a process live that an exec has left and that goes on writing, also without a daemon.
func TestLeftWriterLives(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000", func(c *Create) {
		c.Spec.Mounts = append(c.Spec.Mounts,
			specs.Mount{Destination: g.logs, Type: "bind", Source: g.logs, Options: []string{"bind"}})
	})
	for _, how := range []string{"exec", "session"} {
		file := g.logs + "/" + how
		out := &syncBuffer{}
		if how == "exec" {
			_, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess(ticker(file)), Stdout: out, Stderr: out})
			g.ok(err)
		} else {
			_, err := g.session(t.Context(), ctr, ticker(file), false, Session{Stdout: out, Stderr: out})
			g.ok(err)
		}
		if !strings.Contains(out.String(), "hi\n") {
			t.Errorf("%s: the output is %q", how, out)
		}
		g.goesOn(how+": the child writes on", file)
		g.links.remove(g.pod).shut().end() // as if this daemon had died
		g.goesOn(how+": the child writes on without a daemon", file)
		_, err := g.Adopt(t.Context(), g.pod)
		g.ok(err)
	}
}

// TestDrainWithoutMonitor has the daemon drain streams where the monitor does not answer: one is stopped.
func TestDrainWithoutMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	pid := g.monitor()
	g.ok(unix.Kill(pid, unix.SIGSTOP))
	defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	// A thread of it that is not stopped yet may take the stream, which nobody drains then.
	g.within(5*time.Second, "the monitor is stopped", func() bool { return stopped(pid) })
	r, w, err := os.Pipe()
	g.ok(err)
	g.drains.take(t.Context(), g.pod, ctr, r, nil)
	_ = w.SetWriteDeadline(time.Now().Add(timeouts.For(10 * time.Second)))
	if n, err := w.Write(make([]byte, 256<<10)); err != nil { // more than a pipe holds
		t.Errorf("after %d bytes: %v", n, err)
	}
	_ = w.Close()
	g.within(10*time.Second, "the daemon has let go of it", func() bool { return len(g.drains.own) == 0 })
}

// TestDrainedStreamsAreBounded has a monitor drain as many streams as it may, and close the next.
func TestDrainedStreamsAreBounded(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	var writers []*os.File
	full := 0
	for range maxDrained + 10 {
		r, w, err := os.Pipe()
		g.ok(err)
		writers = append(writers, w)
		reply, err := g.call(t.Context(), g.pod, wire.Request{Op: wire.Drain, Container: ctr}, r)
		g.ok(err)
		_ = r.Close()
		if reply.Full {
			full++
		}
	}
	if full != 10 {
		t.Errorf("%d streams were refused, wanted 10", full)
	}
	var all sync.WaitGroup
	for i, w := range writers {
		all.Go(func() {
			_ = w.SetWriteDeadline(time.Now().Add(timeouts.For(30 * time.Second)))
			_, err := w.Write(make([]byte, 128<<10)) // more than a pipe holds
			if lives := i < maxDrained; lives != (err == nil) {
				t.Errorf("stream %d: %v", i, err)
			}
			_ = w.Close()
		})
	}
	all.Wait()
	g.within(10*time.Second, "there is room again", func() bool {
		r, w, err := os.Pipe()
		g.ok(err)
		defer w.Close()
		reply, err := g.call(t.Context(), g.pod, wire.Request{Op: wire.Drain, Container: ctr}, r)
		g.ok(err)
		_ = r.Close()
		return !reply.Full
	})
}

// TestLeftWriterOutlivesItsClient has the client go while output of a process that was left is still waited for: what
// it holds is drained, and not closed.
func TestLeftWriterOutlivesItsClient(t *testing.T) {
	var drained []*os.File
	e := &ends{drain: func(f *os.File) {
		kept, err := duplicate(f)
		if err != nil {
			t.Error(err)
		}
		drained = append(drained, kept)
	}}
	if err := e.pipes(Session{Stdout: io.Discard, Stderr: io.Discard}); err != nil {
		t.Fatal(err)
	}
	child, err := duplicate(e.theirs[1])
	if err != nil {
		t.Fatal(err)
	}
	closeFiles(e.theirs) // the process has ended; its child holds standard output alone
	gone, leave := context.WithCancel(t.Context())
	leave()
	_ = e.deliver(gone)
	e.hangUp()
	if len(drained) != 1 {
		t.Fatalf("%d streams are drained, wanted 1", len(drained))
	}
	if _, err := child.WriteString("still here"); err != nil {
		t.Errorf("what was left cannot write: %v", err)
	}
	_, _ = child.Close(), drained[0].Close()
}

// TestDrainingIsSlow bounds what can be written to many streams that nobody wants, and so what it costs the node to
// read them.
func TestDrainingIsSlow(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	const streams, share, pause = 64, 8, 10 * time.Millisecond
	var written atomic.Int64
	for range streams {
		r, w, err := os.Pipe()
		g.ok(err)
		_, err = g.call(t.Context(), g.pod, wire.Request{Op: wire.Drain, Container: ctr}, r)
		g.ok(err)
		_ = r.Close()
		defer w.Close()
		go func() {
			for block := make([]byte, 32<<10); ; {
				n, err := w.Write(block)
				written.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	began, before := time.Now(), written.Load()
	time.Sleep(2 * time.Second)
	took := time.Since(began)
	reads := streams * (took/(pause*(1+streams/share)) + 2) // of each stream, and those under way at both ends
	if got, most := written.Load()-before, int64(reads)*32<<10+streams*64<<10; got > most {
		t.Errorf("%d bytes were read in %v, wanted %d at most", got, took, most)
	}
}
