package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// TestNoFile has a drop-in be no file. To open a FIFO would wait for ever for somebody who writes to it.
func TestNoFile(t *testing.T) {
	path := write(t, map[string]string{"config.toml": ""})
	dir := filepath.Join(filepath.Dir(path), "conf.d")
	if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mkfifo(filepath.Join(dir, "10-a.toml"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Flags{Path: path}); !errors.Is(err, limit.ErrNotRegular) {
		t.Errorf("a FIFO: %v", err)
	}
}
