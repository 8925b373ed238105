package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
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
