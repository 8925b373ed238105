package telemetry

import (
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// reader is a reader of a log that takes nothing while it is shut.
type reader struct {
	mu   sync.Mutex
	text strings.Builder
	shut chan struct{} // closed when it opens; nil while it is open
}

func (g *reader) Write(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *reader) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *reader) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

func (g *reader) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

// TestLogThatIsTaken wants each line to be written before Write returns.
func TestLogThatIsTaken(t *testing.T) {
	var g reader
	w := NewWriter(&g, 1<<20)
	for range 100 {
		if n, err := w.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		if got := g.String(); !strings.HasSuffix(got, "line\n") {
			t.Fatalf("written: %q", got)
		}
		g.mu.Lock()
		g.text.Reset()
		g.mu.Unlock()
	}
	if late, lost := w.State(); !late.IsZero() || lost != 0 {
		t.Errorf("late since %v, %d lost", late, lost)
	}
}

// TestLogThatIsNotTaken wants nobody to wait for a log that nobody takes, but once; the lines that there is room for to
// be written when it is taken again, in their order; and the number of the others to be told.
func TestLogThatIsNotTaken(t *testing.T) {
	var g reader
	const limit = 64 << 10
	w := NewWriter(&g, limit)
	log := slog.New(slog.NewTextHandler(w, nil))
	told := make(chan int64, 1)
	w.Lost = func(lines int64) { told <- lines }
	g.close()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 1000 {
				log.Info("a line of the log", "what", strings.Repeat("x", 64))
			}
		})
	}
	all.Wait()
	late, lost := w.State()
	if late.IsZero() || time.Since(late) < inTime || lost == 0 {
		t.Errorf("late since %v, %d lost", late, lost)
	}
	if n := cap(w.waiting); n > 2*limit {
		t.Errorf("%d bytes are kept", n)
	}
	g.open()
	if n := <-told; n != lost {
		t.Errorf("%d lines were lost, and %d told", lost, n)
	}
	log.Info("the last line")
	got := g.String()
	if n := int64(strings.Count(got, "\n")); n != 10*1000+1-lost || !strings.HasSuffix(got, "the last line\"\n") {
		t.Errorf("%d lines are written, %d lost", n, lost)
	}
	if late, _ := w.State(); !late.IsZero() {
		t.Error("still late")
	}
	if cap(w.waiting) > spareSize || cap(w.spare) > spareSize {
		t.Errorf("%d and %d bytes are kept", cap(w.waiting), cap(w.spare))
	}
}

// TestLogThatCannotBeWritten counts lines that a full disk, or a reader that has gone, does not take, and goes on.
func TestLogThatCannotBeWritten(t *testing.T) {
	w := NewWriter(failing{}, 1<<20)
	w.Lost = func(int64) { t.Error("it is told in the log itself") }
	for range 3 {
		if n, err := w.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatal(n, err)
		}
	}
	if late, lost := w.State(); !late.IsZero() || lost != 3 {
		t.Errorf("late since %v, %d lost", late, lost)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// BenchmarkLog is what a line costs its writer more than the system call.
func BenchmarkLog(b *testing.B) {
	for name, w := range map[string]io.Writer{"at once": io.Discard, "by a Writer": NewWriter(io.Discard, 1<<20)} {
		b.Run(name, func(b *testing.B) {
			log := slog.New(slog.NewTextHandler(w, nil))
			for b.Loop() {
				log.Info("call", "method", "Version", "took", time.Second)
			}
		})
	}
}
