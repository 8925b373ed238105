package monitor

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside says what this program, started by a test, is to do.
const inside = "BERTH_TEST_SCHEDULE"

var processors = regexp.MustCompile(`(?m)^Cpus_allowed_list:.*`)

// processorsHere are those that this process, or a program, may run on.
func processorsHere(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	return processors.FindString(string(status))
}

// again starts this test again by sh, as "$@" of a script, and returns what it has said.
func again(t *testing.T, script, task string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script, "sh", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"="+task)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// TestProcessorsOfPrograms has a monitor be bound to one processor, by an affinity, by the cpuset it is in, and by both
// alike. What it starts, in a cpuset with all of them, may run on all; by whichever thread it is started.
func TestProcessorsOfPrograms(t *testing.T) {
	if back := os.Getenv(inside); back != "" {
		programsTellTheirProcessors(t, back)
		return
	}
	back, group := cpuset(t)
	if err := os.WriteFile(filepath.Join(group, "cpuset.cpus"), []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	enter := "echo $$ > " + group + "/cgroup.procs; "
	for name, script := range map[string]string{
		"neither": `exec "$@"`, "affinity": `exec taskset -c 0 "$@"`,
		"cpuset": enter + `exec "$@"`, "both": enter + `exec taskset -c 0 "$@"`,
	} {
		said := again(t, script, back+"/cgroup.procs")
		lines := processors.FindAllString(said, -1)
		if len(lines) != 16 {
			t.Errorf("%s: %d of 16 programs said where they run: %s", name, len(lines), said)
		}
		for _, line := range lines {
			if line != processorsHere(t) {
				t.Errorf("%s: a program has %q", name, line)
			}
		}
	}
}

// programsTellTheirProcessors starts programs by several threads once this process is in the cgroup.
func programsTellTheirProcessors(t *testing.T, procs string) {
	a := newAffinity()
	if err := os.WriteFile(procs, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 16 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the next one has another thread
			var pid int
			var err error
			a.lifted(func() {
				pid, err = syscall.ForkExec("/bin/grep", []string{"grep", "Cpus_allowed_list", "/proc/self/status"},
					&syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			})
			if err == nil {
				_, err = syscall.Wait4(pid, nil, 0, nil)
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// cpuset makes a cgroup with processors of its own, and returns that of this process beside it.
func cpuset(t *testing.T) (own, made string) {
	t.Helper()
	own = "/sys/fs/cgroup/cpuset"
	v2 := false
	if _, err := os.Stat(own); err != nil {
		own, v2 = "/sys/fs/cgroup", true
		control := own + "/cgroup.subtree_control"
		was, err := os.ReadFile(control)
		if err == nil && !strings.Contains(string(was), "cpuset") {
			err = os.WriteFile(control, []byte("+cpuset"), 0o644)
			t.Cleanup(func() { _ = os.WriteFile(control, []byte("-cpuset"), 0o644) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	made, err := os.MkdirTemp(own, "bt-cpuset-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(made); err != nil {
			t.Error(err)
		}
	})
	if v2 {
		return own, made
	}
	mems, err := os.ReadFile(own + "/cpuset.mems")
	if err == nil {
		err = os.WriteFile(made+"/cpuset.mems", mems, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return own, made
}

// TestPolicyWithoutTheRightToLowerNice has a monitor begin with a realtime policy and a nice value that it may not
// lower: the policy goes all the same.
func TestPolicyWithoutTheRightToLowerNice(t *testing.T) {
	if os.Getenv(inside) != "" {
		ordinarySchedule()
		eachThread(func(id int) {
			if a, err := unix.SchedGetAttr(id, 0); err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice != 5 {
				t.Errorf("a thread has %+v, %v", a, err)
			}
		})
		return
	}
	again(t, `chrt --rr 10 nice -n 5 setpriv --bounding-set=-sys_nice --inh-caps=-sys_nice "$@"`, "policy")
}
