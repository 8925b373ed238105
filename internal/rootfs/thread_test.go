package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSparesTheFirstThread fails where what only a thread may have is left to the process's first one, which /proc/self
// shows and which never ends: its mounts would stay for good, and so would its directory.
func TestSparesTheFirstThread(t *testing.T) {
	base := needRoot(t)
	must(t, os.Mkdir(filepath.Join(base, "scratch"), 0o755))
	nothing := func() error { return nil }
	ours := first(t)
	for range 100 {
		must(t, inDir(base, nothing))
		must(t, inOwnMounts(filepath.Join(base, "scratch"), nothing))
		must(t, MkdirAllAs(t.Context(), base, "made", 0o755, 100000, 200000))
		must(t, os.Remove(filepath.Join(base, "made")))
	}
	if now := first(t); now != ours {
		t.Errorf("the first thread was %s, and is %s", ours, now)
	}
}

// first tells what the process's first thread has: its directory, its mounts, its user.
func first(t *testing.T) string {
	t.Helper()
	dir, err := os.Readlink("/proc/self/cwd")
	must(t, err)
	mounts, err := os.Readlink("/proc/self/ns/mnt")
	must(t, err)
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, uid, _ := strings.Cut(string(status), "\nUid:")
	uid, _, _ = strings.Cut(uid, "\n")
	return strings.Join([]string{dir, mounts, strings.Join(strings.Fields(uid), " ")}, ", ")
}
