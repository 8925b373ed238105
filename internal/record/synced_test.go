package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTornRecordHasItsVersionBefore tears a record between its writing and its sync, as a power cut does where a file
// system keeps the rename and loses what was renamed.
func TestTornRecordHasItsVersionBefore(t *testing.T) {
	path, f := write(t, kind, pear{"green"}), &Flusher{}
	var got pear
	if _, err := kind.ReadSynced(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before any sync: %+v, %v", got, err)
	}
	for _, colour := range []string{"green", "yellow", "yellow"} {
		if err := kind.Write(path, pear{colour}); err != nil {
			t.Fatal(err)
		}
		f.DirtyRecord(path)
		f.Dirty(path) // is a record still
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := kind.Write(path, pear{"brown"}); err != nil {
		t.Fatal(err)
	}
	f.DirtyRecord(path)
	if err := os.Truncate(path, 20); err != nil {
		t.Fatal(err)
	}
	var torn *CorruptError
	if _, err := kind.Read(path, &got); !errors.As(err, &torn) || !torn.Torn {
		t.Fatalf("the record is not torn: %v", err)
	}
	if _, err := kind.ReadSynced(path, &got); err != nil || got.Colour != "yellow" {
		t.Errorf("the version before: %+v, %v", got, err)
	}
	wantFiles(t, path, 2)
	if err := errors.Join(Remove(path), Remove(path), f.Flush()); err != nil {
		t.Error(err)
	}
	wantFiles(t, path, 0)
}

// TestRecordRemovedBesideItsSync leaves nothing of a record, whoever is first.
func TestRecordRemovedBesideItsSync(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "record"), &Flusher{}
	for range 200 {
		if err := kind.Write(path, pear{"green"}); err != nil {
			t.Fatal(err)
		}
		f.DirtyRecord(path)
		flushed := make(chan error)
		go func() { flushed <- f.Flush() }()
		if err := errors.Join(Remove(path), <-flushed); err != nil {
			t.Fatal(err)
		}
		wantFiles(t, path, 0)
	}
}

// TestSyncThatFailed has the disk fail once, and tell of that once, as Linux does: what the next sync says of what was
// written before it is worth nothing. The record is written again, and the version before stays until then.
func TestSyncThatFailed(t *testing.T) {
	for name, lose := range map[string]bool{"and it is in memory": false, "and it is lost": true} {
		t.Run(name, func(t *testing.T) {
			path, f := write(t, kind, pear{"green"}), &Flusher{}
			f.DirtyRecord(path)
			if err := f.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := kind.Write(path, pear{"yellow"}); err != nil {
				t.Fatal(err)
			}
			long := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, long, long); err != nil {
				t.Fatal(err)
			}
			f.DirtyRecord(path)
			fail := true
			f.fsync = func(fd *os.File) error {
				if strings.Contains(fd.Name(), "record") && fail {
					fail = false
					return &os.PathError{Op: "sync", Path: fd.Name(), Err: syscall.EIO}
				}
				return fd.Sync()
			}
			if err := f.Flush(); !errors.Is(err, syscall.EIO) {
				t.Errorf("the sync that fails: %v", err)
			}
			var got pear
			if _, err := kind.ReadSynced(path, &got); err != nil || got.Colour != "green" {
				t.Errorf("the version that is on the disk: %+v, %v", got, err)
			}
			if lose {
				if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil { // in its place
					t.Fatal(err)
				}
			}
			err := f.Flush()
			if lose != errors.Is(err, errLost) {
				t.Errorf("the next sync: %v", err)
			}
			want, again := "yellow", f.Flush()
			if lose {
				want = "green"
			}
			if _, err := kind.ReadSynced(path, &got); err != nil || got.Colour != want || again != nil {
				t.Errorf("the version that is on the disk: %+v, %v, %v", got, err, again)
			}
			if info, err := os.Stat(path); err != nil || !lose && info.ModTime().Equal(long) {
				t.Errorf("it was not written again: %v", err)
			}
		})
	}
}

// TestTidy removes what a crash in a write, or between the two parts of a removal, has left.
func TestTidy(t *testing.T) {
	path, f := write(t, kind, pear{"green"}), &Flusher{}
	dir := filepath.Dir(path)
	f.DirtyRecord(path)
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, TempPrefix+"record-1-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Tidy(dir); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, path, 2)
	if err := errors.Join(os.Remove(path), Tidy(dir)); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, path, 0)
}

func wantFiles(t *testing.T, path string, n int) {
	t.Helper()
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != n {
		t.Errorf("%d files, not %d: %v, %v", len(all), n, all, err)
	}
}
