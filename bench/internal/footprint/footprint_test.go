package footprint

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

const mark = "FOOTPRINT_TEST_WORKLOAD"

// A daemon that starts a shim, which starts a marked container program and a pause; and a helper of another parent that
// is known by the pod's id alone.
const family = `
sh -c '
  ` + mark + `=mine sleep 1001 & echo workload $!
  ` + mark + `=theirs sleep 1002 & echo other $!
  sleep 1003 & echo pause $!
  echo shim $$
  wait' &
echo daemon $$
wait`

// programs are those that the family's processes become.
var programs = map[string]string{"workload": "sleep\x001001\x00", "other": "sleep\x001002\x00",
	"pause": "sleep\x001003\x00"}

func TestFindsHelpersAndNoWorkload(t *testing.T) {
	pids := start(t, family, 5)
	loner := exec.Command("sleep", "1004")
	loner.Args[0] = "0123456789abcdef-pod"
	if err := loner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, loner.Process.Pid); _ = loner.Wait() })
	awaitProgram(t, loner.Process.Pid, "0123456789abcdef-pod\x001004\x00")

	g, err := Search{Daemon: pids["daemon"], Mark: mark, Runtime: "mine", Pods: []string{"0123456789abcdef"}}.Find()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shim", "pause"} {
		if !slices.Contains(g.Helpers, pids[name]) {
			t.Errorf("%s (%d) is not among the helpers %v", name, pids[name], g.Helpers)
		}
	}
	if !slices.Contains(g.Helpers, loner.Process.Pid) {
		t.Errorf("what names a pod (%d) is not among the helpers %v", loner.Process.Pid, g.Helpers)
	}
	for _, name := range []string{"daemon", "workload", "other"} {
		if slices.Contains(g.Helpers, pids[name]) {
			t.Errorf("%s (%d) is among the helpers %v", name, pids[name], g.Helpers)
		}
	}
	if slices.Contains(g.Helpers, os.Getpid()) || slices.Contains(g.Helpers, 1) {
		t.Errorf("this test or init is among the helpers %v", g.Helpers)
	}
}

func TestFindFromTheWorkloadUp(t *testing.T) {
	pids := start(t, family, 5)
	// The socket's listener is somebody else: the shim must be found as the parent of its container.
	unrelated := exec.Command("sleep", "1005")
	if err := unrelated.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, unrelated.Process.Pid); _ = unrelated.Wait() })
	g, err := Search{Daemon: unrelated.Process.Pid, Mark: mark, Runtime: "mine"}.Find()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"daemon", "shim", "pause"} {
		if !slices.Contains(g.Helpers, pids[name]) {
			t.Errorf("%s (%d) is not among the helpers %v", name, pids[name], g.Helpers)
		}
	}
}

func TestADaemonThatEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := (Search{Daemon: cmd.Process.Pid, Mark: mark}).Find(); err == nil {
		t.Error("found the processes of a daemon that has ended")
	}
}

func TestMemoryAndActivityOfThisProcess(t *testing.T) {
	self := []int{os.Getpid()}
	before, err := Done(self)
	if err != nil {
		t.Fatal(err)
	}
	ballast := make([]byte, 64<<20)
	var did time.Duration
	for begin := time.Now(); did < 20*time.Millisecond && time.Since(begin) < time.Minute; {
		for i := range ballast {
			ballast[i]++
		}
		after, err := Done(self)
		if err != nil {
			t.Fatal(err)
		}
		did = after.Sub(before).CPU
	}
	if did < 20*time.Millisecond || did > 20*time.Second {
		t.Errorf("some work counts as %s", did)
	}
	m, err := Sum(self)
	if err != nil {
		t.Fatal(err)
	}
	if m.PSS < 64<<20 || m.Threads < 2 {
		t.Errorf("a process that touched 64 MiB occupies %d bytes in %d threads", m.PSS, m.Threads)
	}
	ballast[0]++
}

// start runs a script that prints "name pid" lines, and ends all of them with the test.
func start(t *testing.T, script string, lines int) map[string]int {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	t.Cleanup(func() {
		for _, pid := range pids {
			end(t, pid)
		}
		_ = cmd.Wait()
	})
	for in := bufio.NewScanner(out); len(pids) < lines && in.Scan(); {
		name, pid, _ := strings.Cut(in.Text(), " ")
		if pids[name], err = strconv.Atoi(pid); err != nil {
			t.Fatal(err)
		}
	}
	if len(pids) != lines {
		t.Fatalf("the script printed %v", pids)
	}
	for name, cmdline := range programs {
		awaitProgram(t, pids[name], cmdline)
	}
	return pids
}

// awaitProgram waits until a process has its program and its environment: one that was forked a moment ago has its
// parent's, and then for a moment nothing.
func awaitProgram(t *testing.T, pid int, cmdline string) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(time.Millisecond) {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if string(got) == cmdline && len(environ) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is %q, not %q: %v", pid, got, cmdline, err)
		}
	}
}

func end(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Error(err)
		return
	}
	_ = p.Kill()
}
