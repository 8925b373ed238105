package telemetry

import (
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/test/timeouts"
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
	if s := w.State(); s != (WriterState{}) {
		t.Errorf("it is not taken: %+v", s)
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
	s := w.State()
	lost := s.Lost
	if s.Since.IsZero() || time.Since(s.Since) < inTime || lost == 0 || s.Err != nil {
		t.Errorf("it is not taken: %+v", s)
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
	if s := w.State(); !s.Since.IsZero() {
		t.Errorf("still late: %+v", s)
	}
	if cap(w.waiting) > spareSize || cap(w.spare) > spareSize {
		t.Errorf("%d and %d bytes are kept", cap(w.waiting), cap(w.spare))
	}
}

// TestLogThatCannotBeWritten counts lines that a full disk, or a reader that has gone, does not take, and goes on. The
// number is told when it is written again.
func TestLogThatCannotBeWritten(t *testing.T) {
	to := &failing{err: syscall.ENOSPC}
	w := NewWriter(to, 1<<20)
	told, taken := make(chan int64, 1), []bool{}
	w.Lost = func(lines int64) { told <- lines }
	w.Taken = func(is bool) { taken = append(taken, is) }
	line := func() {
		t.Helper()
		if n, err := w.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatal(n, err)
		}
	}
	begun := time.Now()
	for range 3 {
		line()
	}
	if s := w.State(); s.Since.Before(begun) || s.Lost != 3 || s.Err != syscall.ENOSPC || len(told) != 0 {
		t.Errorf("%+v, and %d told in the log itself", s, len(told))
	}
	to.err = nil
	line()
	if s := w.State(); !s.Since.IsZero() || s.Lost != 3 || s.Err != nil {
		t.Errorf("when it is written again: %+v", s)
	}
	if n := <-told; n != 3 || !slices.Equal(taken, []bool{false, true}) {
		t.Errorf("%d lines were told to be lost; taken: %v", n, taken)
	}
}

// failing is a file whose writes fail. Its error is changed while nobody writes.
type failing struct{ err error }

func (f *failing) Write(p []byte) (int, error) { return len(p), f.err }

// TestLateAndThenBroken has lines be lost because nobody reads them, and the reader go then. Nothing is told to nobody.
func TestLateAndThenBroken(t *testing.T) {
	var g reader
	to := &breaking{reader: &g}
	w := NewWriter(to, 64)
	told := make(chan int64, 1)
	w.Lost = func(lines int64) { told <- lines }
	g.close()
	for range 20 {
		_, _ = w.Write([]byte("a line\n"))
	}
	lost := w.State().Lost
	to.broken.Store(true)
	g.open()
	w.Flush(timeouts.For(10 * time.Second))
	s := w.State()
	if s.Err == nil || s.Lost <= lost || len(told) != 0 {
		t.Errorf("%d lost before, then %+v and %d told", lost, s, len(told))
	}
	to.broken.Store(false)
	_, _ = w.Write([]byte("a line\n"))
	if n := <-told; n != s.Lost {
		t.Errorf("%d lines are told, and %d lost", n, s.Lost)
	}
}

type breaking struct {
	*reader
	broken atomic.Bool
}

func (b *breaking) Write(p []byte) (int, error) {
	n, err := b.reader.Write(p)
	if b.broken.Load() {
		err = syscall.EPIPE
	}
	return n, err
}

// TestSlowLog has each write take a while, though not too long, for many who have something to tell: nobody waits for
// the lines of the others one by one.
func TestSlowLog(t *testing.T) {
	const each = inTime / 4
	to := &counting{each: each}
	w := NewWriter(to, 1<<20)
	log := Logger(w, "text", &slog.LevelVar{}).With("a", 1).WithGroup("of")
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { log.Info("line", "n", i) })
	}
	all.Wait()
	if n := to.writes.Load(); n > 10 {
		t.Errorf("%d writes, each of %v, and %d lines", n, each, 100)
	}
	if n := strings.Count(to.text.String(), "msg=line a=1 of.n="); n != 100 {
		t.Errorf("%d lines of 100 are whole: %s", n, to.text.String())
	}
}

// counting counts writes that take a while.
type counting struct {
	each   time.Duration
	writes atomic.Int32
	text   strings.Builder
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	time.Sleep(c.each)
	return c.text.Write(p)
}

// TestFlush waits for lines that are late, for as long as it is told to.
func TestFlush(t *testing.T) {
	var g reader
	w := NewWriter(&g, 1<<20)
	w.Flush(time.Hour) // nothing was ever written
	g.close()
	for range 3 {
		_, _ = w.Write([]byte("line\n"))
	}
	w.Flush(time.Millisecond)
	time.AfterFunc(10*time.Millisecond, g.open)
	w.Flush(timeouts.For(time.Minute))
	if got := g.String(); strings.Count(got, "\n") != 3 {
		t.Errorf("written: %q", got)
	}
}

// BenchmarkLog is what a line costs its writer more than the system call.
func BenchmarkLog(b *testing.B) {
	var level slog.LevelVar
	for name, log := range map[string]*slog.Logger{
		"of the library, at once":     slog.New(slog.NewTextHandler(io.Discard, nil)),
		"of the library, by a Writer": slog.New(slog.NewTextHandler(NewWriter(io.Discard, 1<<20), nil)),
		"by a Writer":                 Logger(NewWriter(io.Discard, 1<<20), "text", &level),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				log.Info("call", "method", "Version", "took", time.Second)
			}
		})
	}
}
