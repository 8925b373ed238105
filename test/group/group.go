// Package group gives a test a cgroup of its own, and wants nothing to be left in it.
package group

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
	"berth/test/patience"
)

var made atomic.Int64 // of this process

// New makes a group of the cgroup2 hierarchy, which is removed when the test ends. Processes and groups that are in it
// then fail the test, and are ended.
func New(t testing.TB) *cgroup.Group {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top, err := cgroup.Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g, err := cgroup.Make(top, fmt.Sprintf("berth-test-%d-%d", os.Getpid(), made.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, g) })
	return g
}

func remove(t testing.TB, g *cgroup.Group) {
	if pids, err := g.Pids(); err != nil || len(pids) > 0 {
		t.Errorf("left processes %v, %v", pids, err)
	}
	if left, _ := filepath.Glob(g.Path() + "/*/cgroup.procs"); len(left) > 0 {
		t.Errorf("left groups %v", left)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(30*time.Second))
	defer cancel()
	_ = g.Kill()
	if err := errors.Join(g.WaitEmpty(ctx), g.Remove()); err != nil {
		t.Error(err)
	}
}
