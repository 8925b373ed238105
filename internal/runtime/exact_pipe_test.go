package runtime

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOddPipes has containers make of their pipes what they can: tiny and huge ones, bytes one by one, and pages of
// files. All of it is in the log once, while monitors are killed.
func TestOddPipes(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"of one page": 4096, "of a mebibyte": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			const lines = 20_000
			ctr := g.create(writer(lines, "usleep 100000"))
			for _, stream := range []string{"stdout", "stderr"} {
				resize(g, ctr, stream, size)
			}
			g.ok(g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline))
			g.strike(ctr, func(int) {})
			g.whole(ctr, lines)
		})
	}
	t.Run("filled byte by byte", func(t *testing.T) {
		g := newRig(t)
		ctr := g.run("seq 1 2000 | dd bs=1 2>/dev/null; exit 3")
		g.strike(ctr, func(int) {})
		g.saysNumbers(ctr, 2000)
	})
	t.Run("with pages of a file", func(t *testing.T) {
		g := newRig(t)
		var text bytes.Buffer
		for i := range 50_000 {
			fmt.Fprintln(&text, i+1)
		}
		file := filepath.Join(t.TempDir(), "numbers")
		g.ok(os.WriteFile(file, text.Bytes(), 0o600))
		ctr := g.run("read go; exit 3", func(c *Create) { c.Stdin = true })
		f := g.must(os.Open(file)).(*os.File)
		defer f.Close()
		fifo := g.must(unix.Open(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdout"), unix.O_WRONLY, 0)).(int)
		defer unix.Close(fifo)
		for at := int64(0); at < int64(text.Len()); {
			n, err := unix.Splice(int(f.Fd()), &at, fifo, nil, 20_000, 0)
			g.ok(err)
			if n == 0 {
				t.Fatalf("the file ends at %d", at)
			}
			if at%7 == 0 {
				_ = unix.Kill(g.monitor(), unix.SIGKILL)
			}
		}
		g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
		g.saysNumbers(ctr, 50_000)
	})
}

// resize sets how much a container's pipe holds. The container could do that itself.
func resize(g *rig, ctr, stream string, size int) {
	g.Helper()
	fd := g.must(unix.Open(filepath.Join(g.cfg.bundle(g.pod, ctr), stream), unix.O_RDONLY|unix.O_NONBLOCK, 0)).(int)
	defer unix.Close(fd)
	g.must(unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size))
}

// saysNumbers waits for the end of a container and checks that it has said the numbers from 1 on.
func (g *rig) saysNumbers(ctr string, last int) {
	g.Helper()
	if e := g.exit(ctr); !honest(e, 3) {
		g.Errorf("exit %+v", e)
	}
	next := 1
	for line := range strings.Lines(g.said(ctr)) {
		if line != fmt.Sprintf("%d\n", next) {
			g.Fatalf("%q instead of %d", line, next)
		}
		next++
	}
	if next != last+1 {
		g.Errorf("the log ends with %d", next-1)
	}
}

// TestWindowsAreGivenBack has output flow and stop: what its journal has grown by is given back, and never more than it
// may.
func TestWindowsAreGivenBack(t *testing.T) {
	g := newRig(t)
	ctr := g.run("read go; yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 30000000; echo; echo ready; sleep 1000",
		func(c *Create) { c.Stdin = true })
	path := filepath.Join(g.cfg.bundle(g.pod, ctr), "journal")
	used := func() int64 {
		var st unix.Stat_t
		g.ok(unix.Stat(path, &st))
		return st.Blocks * 512
	}
	monitor := g.monitor()
	g.ok(unix.Kill(monitor, unix.SIGSTOP)) // so that there is more than a window holds when it goes on
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
	stdout, err := os.OpenFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdout"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	g.ok(err)
	defer stdout.Close()
	g.within(30*time.Second, "its pipe is full", func() bool {
		n, err := unix.IoctlGetInt(int(stdout.Fd()), unix.TIOCINQ)
		return err == nil && n > 60<<10
	})
	g.ok(unix.Kill(monitor, unix.SIGCONT))
	most := int64(0)
	for !strings.HasSuffix(g.tail(ctr), "ready\n") {
		most = max(most, used())
		time.Sleep(time.Millisecond)
	}
	g.within(5*time.Second, "what the journal has grown by is given back", func() bool { return used() <= 8<<10 })
	if t.Logf("it took %d bytes at most", most); most > 168<<10 || most <= 8<<10 {
		t.Errorf("it took %d bytes", most)
	}
}

// tail is the end of a log.
func (g *rig) tail(ctr string) string {
	f, err := os.Open(filepath.Join(g.logs, g.log(ctr).Path))
	if err != nil {
		return ""
	}
	defer f.Close()
	_, _ = f.Seek(-100, io.SeekEnd)
	data, _ := io.ReadAll(f)
	return string(data)
}
