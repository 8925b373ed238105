package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	renamed := func() (*logFile, error) { return openLogThatWas(l, first.id) }
	late := unopened(l, openLog, os.ErrNotExist)
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
			f.look(at)
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

// TestFirstLineAfterALogIsReplaced renames another file over the log of a container that says a line now and then, as a
// kubelet does which takes a reopening for failed: each line is in the file that has the log's name by then.
func TestFirstLineAfterALogIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	m := &Monitor{spare: make(chan *buffer, 1)}
	w := &logWriter{m: m, ctr: "c1", opening: make(chan struct{}, 1)}
	j, err := makeJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.keep(j)
	if err := w.to(&wire.Log{Dir: dir, Path: "log"}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		line := fmt.Sprintf("line %d\n", n)
		s := w.sources[1]
		at := s.taken.Load()
		copy(j.mem[at:], line)
		j.head.taken[s.i][s.side] = at + int64(len(line))
		s.taken.Store(at + int64(len(line)))
		w.taken()
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
	w.shut()
}
