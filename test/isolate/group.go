package isolate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/test/timeouts"
)

var groupsMade atomic.Int64 // of this process

// Group makes a cgroup of the cgroup2 hierarchy for a test, and removes it when the test ends. If processes or groups
// are left in it then, the test fails and they are ended.
func Group(t testing.TB) *cgroup.Group {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top, err := cgroup.Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g, err := cgroup.Make(top, fmt.Sprintf("berth-test-%d-%d", os.Getpid(), groupsMade.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, g) })
	return g
}

func removeGroup(t testing.TB, g *cgroup.Group) {
	if pids, err := g.Pids(); err != nil || len(pids) > 0 {
		t.Errorf("left processes %v, %v", pids, err)
	}
	if left, _ := filepath.Glob(g.Path() + "/*/cgroup.procs"); len(left) > 0 {
		t.Errorf("left groups %v", left)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(30*time.Second))
	defer cancel()
	_ = g.Kill()
	if err := errors.Join(g.WaitEmpty(ctx), g.Remove()); err != nil {
		t.Error(err)
	}
}
