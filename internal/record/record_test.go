package record

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var kind = Kind{Name: "pear", Version: 3, Oldest: 2}

type pear struct{ Colour string }

func write(t *testing.T, k Kind, v any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "record")
	if err := k.Write(path, v); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRoundTrip(t *testing.T) {
	path := write(t, kind, pear{"green"})
	var got pear
	v, err := kind.Read(path, &got)
	if err != nil || v != 3 || got.Colour != "green" {
		t.Fatalf("got %+v, version %d, %v", got, v, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Fatalf("Write left temporary files: %v", left)
	}
}

func TestReadsOlderRefusesOthers(t *testing.T) {
	var got pear
	older := write(t, Kind{Name: "pear", Version: 2}, pear{"old"})
	if v, err := kind.Read(older, &got); err != nil || v != 2 || got.Colour != "old" {
		t.Fatalf("older: %+v %d %v", got, v, err)
	}
	for _, version := range []int{1, 4} {
		path := write(t, Kind{Name: "pear", Version: version}, pear{})
		var ve *VersionError
		if _, err := kind.Read(path, &got); !errors.As(err, &ve) || ve.Found != version {
			t.Errorf("version %d: %v", version, err)
		}
	}
	if _, err := kind.Read(filepath.Join(t.TempDir(), "none"), &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// TestWritesNothingThatIsNotReadAgain has a record be as large as it may be, a byte larger, and larger than Read takes.
func TestWritesNothingThatIsNotReadAgain(t *testing.T) {
	path := write(t, kind, pear{"green"})
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	size := int(info.Size())
	if err := kind.WriteWithin(path, pear{"black"}, size); err != nil {
		t.Error(err)
	}
	staged, large := path+".new", pear{strings.Repeat("x", MaxSize)}
	for name, err := range map[string]error{
		"a byte more": kind.WriteWithin(path, pear{"white"}, size-1),
		"any bound":   kind.WriteWithin(path, large, 2*MaxSize),
		"no bound":    kind.Write(path, large),
		"staged":      kind.Stage(staged, large),
	} {
		var e *SizeError
		if !errors.As(err, &e) || e.Size <= e.Most {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(staged); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the staged file: %v", err)
	}
	var got pear
	if _, err := kind.Read(path, &got); err != nil || got.Colour != "black" {
		t.Errorf("the record: %+v, %v", got, err)
	}
}

func TestDamageIsFound(t *testing.T) {
	cases := map[string]func(string) string{
		"flipped byte": func(s string) string { return strings.Replace(s, "green", "grean", 1) },
		"cut short":    func(s string) string { return s[:len(s)-2] },
		"grown":        func(s string) string { return s + "x" },
		"empty":        func(string) string { return "" },
		"no header":    func(s string) string { return s[strings.Index(s, "\n"):] },
		"other kind":   func(s string) string { return strings.Replace(s, " pear ", " plum ", 1) },
		"zeroes":       func(s string) string { return strings.Repeat("\x00", len(s)) },
		"zero end":     func(s string) string { return s[:len(s)-4] + "\x00\x00\x00\x00" },
		"a few bytes":  func(s string) string { return s[:5] },
	}
	torn := map[string]bool{"cut short": true, "empty": true, "zeroes": true, "zero end": true, "a few bytes": true}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			path := write(t, kind, pear{"green"})
			data, _ := os.ReadFile(path)
			if err := os.WriteFile(path, []byte(damage(string(data))), 0o600); err != nil {
				t.Fatal(err)
			}
			var got pear
			var ce *CorruptError
			if _, err := kind.Read(path, &got); !errors.As(err, &ce) {
				t.Fatalf("damage not found: %v, read %+v", err, got)
			}
			if ce.Torn != torn[name] {
				t.Errorf("torn: %v", ce.Torn)
			}
		})
	}
}

// TestNoRegularFile has something else be where a record is: it is a damaged record, and nobody waits for a writer.
func TestNoRegularFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"socket": func(path string) error {
			s, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { _ = s.Close() })
			}
			return err
		},
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "r")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			var got pear
			var ce *CorruptError
			if _, err := kind.Read(path, &got); !errors.As(err, &ce) || ce.Torn || ce.Reason != "it is no regular file" {
				t.Errorf("%v", err)
			}
			f := &Flusher{}
			f.DirtyRecord(path)
			if err := f.Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
			if err := Remove(path); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
}

func TestWriteKeepsOldOnFailure(t *testing.T) {
	path := write(t, kind, pear{"old"})
	if err := kind.Write(path, map[string]any{"f": func() {}}); err == nil {
		t.Fatal("an unencodable value was written")
	}
	var got pear
	if _, err := kind.Read(path, &got); err != nil || got.Colour != "old" {
		t.Fatalf("old record lost: %+v %v", got, err)
	}
}

func TestStagedRecordIsWholeInItsPlace(t *testing.T) {
	path := write(t, kind, pear{"old"})
	if err := kind.Stage(path+".staged", pear{"new"}); err != nil {
		t.Fatal(err)
	}
	if err := kind.Stage(filepath.Join(path, "below a file"), pear{}); err == nil {
		t.Error("staged where no file can be")
	}
	if err := os.Rename(path+".staged", path); err != nil {
		t.Fatal(err)
	}
	var got pear
	if _, err := kind.Read(path, &got); err != nil || got.Colour != "new" {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestFlusherForgetsWhatIsGone(t *testing.T) {
	path := write(t, kind, pear{})
	f := Flusher{Interval: time.Hour}
	f.Dirty(path)
	f.Dirty(filepath.Join(t.TempDir(), "gone"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.Run(ctx) // flushes a last time
	if len(f.dirty) != 0 {
		t.Fatalf("still dirty: %v", f.dirty)
	}
}

func TestFlusherKeepsWhatFails(t *testing.T) {
	dir := t.TempDir()
	notDir := filepath.Join(dir, "file")
	if err := os.WriteFile(notDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var failed int
	f := Flusher{Failed: func(string, error) { failed++ }}
	f.Dirty(filepath.Join(notDir, "below")) // ENOTDIR
	if err := f.Flush(); err == nil || failed != 1 {
		t.Fatalf("failure not reported: %v, %d", err, failed)
	}
	if len(f.dirty) == 0 {
		t.Fatal("a path that could not be synced was forgotten")
	}
}

func TestFlusherWakesWhenSomethingIsDirty(t *testing.T) {
	f := &Flusher{Interval: time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	for range 3 {
		f.Dirty(write(t, kind, pear{}))
		for clean := false; !clean; time.Sleep(time.Millisecond) {
			f.mu.Lock()
			clean = len(f.dirty) == 0
			f.mu.Unlock()
		}
	}
	cancel()
	<-done
}
