package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// endedTest says to the test's own program, run again, that it is in a group that was ended: below which mount.
const endedTest = "BERTH_TEST_ENDED"

// TestLeaveEnded has a process be moved into a group that was ended once: what it starts in new groups lives after it
// has left, also where a process before it had left for the same reason.
func TestLeaveEnded(t *testing.T) {
	if top := os.Getenv(endedTest); top != "" {
		leaveEnded(t, top)
		return
	}
	g := testGroup(t)
	top, err := Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if left, err := LeaveEnded(top, "berth-test-probe-"+strconv.Itoa(os.Getpid())); left != "" || err != nil {
		t.Fatalf("left %q, %v, and nothing had ended it", left, err)
	}
	for range 2 {
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$1" -test.run '^TestLeaveEnded$'`,
			g.Path(), "/proc/"+strconv.Itoa(os.Getpid())+"/exe")
		cmd.Env = append(os.Environ(), endedTest+"="+top)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// leaveEnded is TestLeaveEnded in the process that was moved.
func leaveEnded(t *testing.T, top string) {
	own, err := Own(top)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(filepath.Dir(own)) + "/probe"
	probe, err := Make(top, name)
	if err != nil {
		t.Fatal(err)
	}
	dies, err := birthDies(probe)
	if err != nil {
		t.Fatal(err)
	}
	left, err := LeaveEnded(top, name)
	if want := map[bool]string{true: own}[dies]; err != nil || left != want {
		t.Fatalf("left %q, not %q: %v", left, want, err)
	}
	if !dies {
		t.Log("this kernel kills nothing")
	}
	if dies, err := birthDies(probe); dies || err == nil {
		t.Errorf("dies %v, %v; the probe is to be gone", dies, err)
	}
	after, err := Make(top, name)
	if err != nil {
		t.Fatal(err)
	}
	dies, err = birthDies(after)
	if err := errors.Join(err, after.Remove()); err != nil || dies {
		t.Errorf("what is born after it has left dies: %v, %v", dies, err)
	}
}
