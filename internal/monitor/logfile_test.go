package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// TestLogsThatAreRemoved removes logs that are open, and puts other files in their places. A living container's log
// goes on in the other file, and is not made anew where there is none; what is owed to a deleted container's log goes
// to no other file.
func TestLogsThatAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	l := &wire.Log{Dir: dir, Path: "log"}
	first, err := openLog(l)
	if err != nil {
		t.Fatal(err)
	}
	renamed := func() (*logFile, error) {
		f, err := openUp(l, first.id, true)
		if err == nil {
			f.stays = true
		}
		return f, err
	}
	late := unopened(l, fileID{}, os.ErrNotExist)
	late.tryAgain(late.tried.Add(openPause))
	logs := map[string]*logFile{"living": first, "opened late": late}
	if logs["owed"], err = renamed(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if logs["owed and renamed"], err = renamed(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	look := func(at time.Time) {
		for _, f := range logs {
			f.sized = time.Time{}
			f.sizeAt(at)
			f.tryAgain(at)
		}
	}
	at := time.Now().Add(2 * openPause)
	look(at)
	if _, err := os.Lstat(path); err == nil {
		t.Error("a log that was removed is there again")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	was := first.id
	look(at.Add(2 * openPause))
	for name, f := range logs {
		if moved := f.id != was; moved != (name == "living" || name == "opened late") {
			t.Errorf("%s: it goes on in another file: %v", name, moved)
		}
		f.close()
	}
}

// newWriter makes what brings the output of a container to its log, which has none yet.
func newWriter(t *testing.T) *logWriter {
	t.Helper()
	j, err := makeJournal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &Monitor{spare: make(chan *buffer, 1)}
	w := &logWriter{m: m, ctr: "c1", opening: make(chan struct{}, 1)}
	w.keep(j)
	t.Cleanup(w.shut)
	return w
}

// say has the container say something.
func say(w *logWriter, text string) {
	s := w.sources[1]
	to := s.taken.Load() + int64(len(text))
	copy(w.journal.mem[s.taken.Load():], text)
	w.journal.head.taken[s.i][s.side] = to
	s.taken.Store(to)
	w.taken()
}

// TestFirstLineAfterALogIsReplaced renames another file over the log of a container that says a line now and then, as a
// kubelet does which takes a reopening for failed: each line is in the file that has the log's name by then.
func TestFirstLineAfterALogIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	w := newWriter(t)
	if err := w.to(&wire.Log{Dir: dir, Path: "log"}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		line := fmt.Sprintf("line %d\n", n)
		say(w, line)
		if got, err := os.ReadFile(path); err != nil || !strings.HasSuffix(string(got), " stdout F "+line) {
			t.Errorf("the log ends with %q, and not with %q: %v", got, line, err)
		}
		if err := os.WriteFile(path+".old", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".old", path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sizeTime + 10*time.Millisecond)
		w.file.tried = time.Time{} // in a while
	}
}

// TestLogOfAFileSystemWithoutLinkCounts has a log on a file system that says 0 links of each file, as some of FUSE do:
// it is not taken for one that was replaced.
func TestLogOfAFileSystemWithoutLinkCounts(t *testing.T) {
	l := &wire.Log{Dir: t.TempDir(), Path: "log"}
	f, err := openLog(l)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	was := f.fd
	for at := time.Now(); f.tried.IsZero(); at = at.Add(openPause) {
		f.unlinked = true // as its size was asked for
		f.tryAgain(at)
	}
	if f.fd != was {
		t.Errorf("it goes on as %d, and was open as %d", f.fd, was)
	}
	if fds, err := filepath.Glob("/proc/self/fd/*"); err != nil || slices.ContainsFunc(fds, func(fd string) bool {
		to, _ := os.Readlink(fd)
		return to == filepath.Join(l.Dir, l.Path) && fd != fmt.Sprint("/proc/self/fd/", was)
	}) {
		t.Errorf("it is open twice: %v, %v", fds, err)
	}
}

// TestTornLog goes on in a log that ends in the middle of an entry, as another monitor has left it or as a disk that
// was full: the next entry is not appended to that one.
func TestTornLog(t *testing.T) {
	const torn = "2026-11-28T00:00:00.000000000Z stdout F cut o"
	for name, begin := range map[string]func(w *logWriter, l *wire.Log) error{
		"taken up without the journal": func(w *logWriter, l *wire.Log) error {
			w.file = takeUpLog(w, l, false)
			return nil
		},
		"opened anew": func(w *logWriter, l *wire.Log) error { return w.to(l) },
		"opened before it was torn": func(w *logWriter, l *wire.Log) error {
			if err := os.Rename(l.Dir+"/log", l.Dir+"/torn"); err != nil {
				return err
			}
			if err := os.WriteFile(l.Dir+"/log", nil, 0o600); err != nil {
				return err
			}
			f, err := openLog(l)
			if err != nil {
				return err
			}
			w.file, w.next = f, nil
			if w.next, err = openLog(l); err != nil {
				return err
			}
			f.write([]byte(torn), 0, 0)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, l := newWriter(t), &wire.Log{Dir: t.TempDir(), Path: "log"}
			if err := os.WriteFile(l.Dir+"/log", []byte(torn), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := begin(w, l); err != nil {
				t.Fatal(err)
			}
			say(w, "next\n")
			got, err := os.ReadFile(l.Dir + "/log")
			if lines := strings.Split(string(got), "\n"); err != nil || len(lines) != 3 || lines[0] != torn {
				t.Errorf("the log has %q: %v", got, err)
			}
		})
	}
}

// TestLogOfAForgottenContainer removes a container's log, and makes another one of its name, while this monitor has
// something for it still: a notice that a full disk does not take, for a log that is open or could not be opened, or
// output that a hung disk has held up. None of it goes to the other log, and none is made.
func TestLogOfAForgottenContainer(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *logWriter, l *wire.Log){
		"notice": func(t *testing.T, w *logWriter, _ *wire.Log) {
			fd, err := unix.Open(fmt.Sprint("/proc/self/fd/", w.file.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0) // takes nothing
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(w.file.fd)
			w.file.fd = fd
			say(w, "dropped\n")
			w.shut()
		},
		"notice for a log that could not be opened": func(t *testing.T, w *logWriter, l *wire.Log) {
			path := filepath.Join(l.Dir, l.Path)
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path+".1", path); err != nil { // no log is opened by it
				t.Fatal(err)
			}
			w.file = takeUpLog(w, l, false)
			say(w, "dropped\n")
			w.shut()
			if err := os.Remove(path + ".1"); err != nil {
				t.Fatal(err)
			}
		},
		"output": func(_ *testing.T, w *logWriter, _ *wire.Log) { stay(w) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, l := newWriter(t), &wire.Log{Dir: t.TempDir(), Path: "a/log"}
			if err := w.to(l); err != nil {
				t.Fatal(err)
			}
			say(w, "line\n")
			end(t, w, l)
			path := filepath.Join(l.Dir, l.Path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			again := func() {
				time.Sleep(noticePause + openPause + 100*time.Millisecond) // pay tries meanwhile
				if name == "output" {
					say(w, "late\n")
				}
			}
			again()
			if _, err := os.Lstat(path); err == nil {
				t.Error("it is made anew")
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			again()
			if got, err := os.ReadFile(path); err != nil || len(got) > 0 {
				t.Errorf("the other log has %q: %v", got, err)
			}
		})
	}
}
