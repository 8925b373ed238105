package preload

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/test/timeouts"
)

// TestWatchWithoutTheKernel has the kernel allow no watcher: the directory is looked at often, and the log says why,
// once. When there is room again it is watched.
func TestWatchWithoutTheKernel(t *testing.T) {
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var log strings.Builder
	w := newWatch(path, slog.New(slog.NewTextHandler(&log, nil)))
	defer w.close()
	w.open = func() (*fsnotify.Watcher, error) { return nil, os.NewSyscallError("inotify_init1", syscall.EMFILE) }
	for range 3 {
		if w.follow(dir); w.every(usualPace) != usualPace.blind {
			t.Errorf("looked at every %v", w.every(usualPace))
		}
	}
	if said := log.String(); strings.Count(said, "seen late") != 1 || !strings.Contains(said, "max_user_instances") {
		t.Errorf("logged: %s", said)
	}
	w.open = fsnotify.NewWatcher
	for range 3 {
		if w.follow(dir); w.every(usualPace) != usualPace.every {
			t.Errorf("with a watcher looked at every %v", w.every(usualPace))
		}
	}
	if said := log.String(); strings.Count(said, "at once again") != 1 {
		t.Errorf("logged: %s", said)
	}
	if err := os.WriteFile(filepath.Join(path, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.changed:
	case <-time.After(timeouts.For(10 * time.Second)):
		t.Error("no change is told")
	}
}
