package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A copy that cannot be made leaves the one of an earlier start, and nothing half made.
func TestLendFallsBack(t *testing.T) {
	dir := t.TempDir()
	monitor, path := filepath.Join(dir, "monitor"), filepath.Join(dir, "pod-init")
	if err := os.WriteFile(monitor, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	fails, works := func(string) error { return full }, func(string) error { return nil }
	for _, c := range []struct {
		label func(string) error
		want  string
		err   error
	}{{fails, "", full}, {works, path, nil}, {fails, path, full}} {
		if got, err := lend(monitor, path, c.label); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := os.Stat(path + ".next"); !os.IsNotExist(err) {
			t.Errorf("a part is left: %v", err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "one" {
		t.Errorf("%q, %v", text, err)
	}
}
