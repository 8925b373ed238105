package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// TestFileOfTheNode has a file that pods get a copy of be absent, a FIFO, which to open waits for ever, or as large as
// a sparse file can be.
func TestFileOfTheNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	if data, err := ofNode(path); err != nil || len(data) != 0 {
		t.Errorf("absent: %q, %v", data, err)
	}
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ofNode(path); !errors.Is(err, limit.ErrNotRegular) {
		t.Errorf("a FIFO: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("127.0.0.1 a\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if data, err := ofNode(path); err != nil || string(data) != "127.0.0.1 a\n" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	var exceeded *limit.Error
	if _, err := ofNode(path); !errors.As(err, &exceeded) {
		t.Errorf("of a TiB: %v", err)
	}
}
