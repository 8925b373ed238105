package helper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/cgroup"
	"berth/test/isolate"
	"berth/test/timeouts"
)

// frozen starts a process in a group of the runner's, and has it hang as one does that waits for a dead file server:
// the freezer of cgroup v1 keeps it from dying of SIGKILL. thaw lets it go on, and waits for its end.
func frozen(t *testing.T, at string) (thaw func()) {
	t.Helper()
	root, name := filepath.Split(at)
	freezer := filepath.Join("/sys/fs/cgroup/freezer", filepath.Base(root)+"-"+name)
	if err := os.Mkdir(freezer, 0o755); err != nil {
		t.Skipf("needs the freezer of cgroup v1: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(freezer); err != nil {
			t.Error(err)
		}
	})
	g, err := cgroup.Make(root, name)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(freezer, "freezer.state")
	ended := false
	thaw = func() {
		if ended {
			return
		}
		ended = true
		if err := cgroup.Write(state, "THAWED"); err != nil {
			t.Error(err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(thaw)
	if err := cgroup.Write(filepath.Join(freezer, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := cgroup.Write(state, "FROZEN"); err != nil {
		t.Fatal(err)
	}
	until(t, "freezes", func() bool {
		data, err := os.ReadFile(state)
		return err == nil && strings.TrimSpace(string(data)) == "FROZEN"
	})
	return thaw
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(time.Minute)); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never %s", what)
		}
	}
}

// TestSweepOfMany has a start wait once, however many helpers of an earlier daemon hang in the kernel. What they were
// run for is refused, all else goes on, and each is cleared away when it ends.
func TestSweepOfMany(t *testing.T) {
	r := testRunner(t)
	other := isolate.Group(t).Path()
	waits := 0
	withTimeout = func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		waits++
		return context.WithTimeout(ctx, min(d, 50*time.Millisecond))
	}
	t.Cleanup(func() { withTimeout = context.WithTimeout })
	const many = 12
	var thaw []func()
	for i := range many {
		root := r.Root
		if i == many-1 {
			root = other
		}
		thaw = append(thaw, frozen(t, fmt.Sprintf("%s/cni-%02d-7", root, i)))
	}
	if err := r.Sweep(other); err == nil || strings.Count(err.Error(), "do not die of SIGKILL") < many {
		t.Errorf("told: %v", err)
	}
	if waits != 1 {
		t.Errorf("waited %d times", waits)
	}
	if stuck := r.Stuck(); len(stuck) != many || stuck[0].Since.IsZero() || len(stuck[0].Pids) != 1 {
		t.Errorf("stuck: %+v", stuck)
	}
	for _, name := range []string{"cni-00", "cni-11"} {
		err := r.Run(t.Context(), name, shell("exit 0"))
		if err == nil || !strings.Contains(err.Error(), "do not die of SIGKILL") {
			t.Errorf("%s ran beside what hangs: %v", name, err)
		}
	}
	if err := r.Run(t.Context(), "cni-99", shell("exit 0")); err != nil {
		t.Errorf("another name: %v", err)
	}
	withTimeout = context.WithTimeout
	thaw[0]()
	if err := r.Run(t.Context(), "cni-00", shell("exit 0")); err != nil {
		t.Errorf("what hung has ended: %v", err)
	}
	for _, f := range thaw {
		f()
	}
	r.look() // as its timer has it do
	if stuck := r.Stuck(); len(stuck) != 0 {
		t.Errorf("still stuck: %v", stuck)
	}
}
