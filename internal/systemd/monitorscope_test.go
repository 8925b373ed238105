package systemd

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"berth/internal/cgroup"
)

// TestMonitorScopeWithoutFiles waits for a process to be put into a scope in whose directory nothing can be found, as
// is seen of one that is on its way out or in.
func TestMonitorScopeWithoutFiles(t *testing.T) {
	tracking, err := cgroup.Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &MonitorScope{Instance: "berth-" + random(3), Mount: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(s.Mount, s.Group()), 0o755); err != nil {
		t.Fatal(err)
	}
	g, err := cgroup.Make(tracking, s.Group())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for dir := g.Path(); dir != tracking && os.Remove(dir) == nil; {
			dir = filepath.Dir(dir)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := startHolder(self)
	if err != nil {
		t.Fatal(err)
	}
	defer h.end()
	awaited := make(chan error, 1)
	go func() { awaited <- s.await(t.Context(), h.pid()) }()
	select {
	case err := <-awaited:
		t.Fatalf("before it is there: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := cgroup.Write(filepath.Join(g.Path(), "cgroup.procs"), strconv.Itoa(int(h.pid()))); err != nil {
		t.Fatal(err)
	}
	if err := <-awaited; err != nil {
		t.Error(err)
	}
}
