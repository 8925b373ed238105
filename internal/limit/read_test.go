package limit

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestReadFile reads what is no regular file, too, and one that is too large: nothing is waited for.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	most := Budget{Name: "size of a file", Unit: Bytes, Limit: 8}
	for name, size := range map[string]int{"empty": 0, "full": 8, "large": 9} {
		if err := os.WriteFile(at(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(at("full"), at("link")), os.Symlink("/dev/zero", at("zero")),
		unix.Mkfifo(at("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"empty": 0, "full": 8, "link": 8} {
		if got, err := ReadFile(at(name), most); err != nil || !bytes.Equal(got, make([]byte, want)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, want := range map[string]error{
		"large": errdefs.ErrResourceExhausted, "fifo": ErrNotRegular, "zero": ErrNotRegular, ".": ErrNotRegular,
		"none": fs.ErrNotExist,
	} {
		if got, err := ReadFile(at(name), most); !errors.Is(err, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// TestCheckFile looks at what a library is about to open.
func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	most := Budget{Name: "size of a file", Unit: Bytes, Limit: 8}
	if err := errors.Join(os.WriteFile(at("full"), make([]byte, 8), 0o600),
		os.WriteFile(at("large"), make([]byte, 9), 0o600), os.Symlink(at("full"), at("link")),
		os.Symlink("/dev/null", at("null")), os.Symlink("/dev/zero", at("zero")),
		unix.Mkfifo(at("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"full": nil, "link": nil, "null": nil, "none": nil, ".": nil,
		"large": errdefs.ErrResourceExhausted, "fifo": ErrNotRegular, "zero": ErrNotRegular,
	} {
		if err := CheckFile(at(name), most); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
