package monitor

import (
	"os"
	"path/filepath"
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
