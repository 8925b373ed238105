package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestHandsStart stops, starts and restarts a pod of two containers.
func TestHandsStart(t *testing.T) {
	each(t, func(r rig) {
		image, name := ref("busybox:latest"), "again-"+unique(r.T)
		script := "echo attempt; touch /mine; trap 'exit 0' TERM; while true; do sleep 0.1; done"
		r.mustBerth("run", "-d", "--log-dir", r.n.Logs, "--name", name, "-e", "KEPT=yes", image, "sh", "-c", script)
		r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		r.mustBerth("run", "-d", "--pod", name, "--name", "side", image, "sh", "-c", script)
		restarts := func(ctr string) string {
			for line := range strings.Lines(r.mustBerth("ps", "--pod", name, "--name", "^"+ctr+"$")) {
				if f := strings.Fields(line); len(f) > 5 && f[1] == ctr && f[3] == "running" {
					return f[5]
				}
			}
			return "not running"
		}
		address := func() string {
			return strings.Fields(r.mustBerth("exec", name, "sh", "-c", "hostname -i; echo $KEPT"))[0]
		}
		before := address()
		r.mustBerth("restart", name) // both, in the same pod
		if a, b := restarts(name), restarts("side"); a != "1" || b != "1" || address() != before {
			r.Errorf("after restart: %s and %s, address %s, was %s", a, b, address(), before)
		}
		r.mustBerth("restart", name+"/side")
		r.mustBerth("restart", name+"/side")
		if a, b := restarts(name), restarts("side"); a != "1" || b != "3" {
			r.Errorf("after restarts of one: %s and %s", a, b)
		}
		if out := r.mustBerth("ps", "-aq", "--pod", name); len(strings.Fields(out)) != 4 {
			r.Errorf("of each the attempt before is kept, and no other: %q", out)
		}
		r.eventually("the log of the attempt before is there", func() bool {
			return strings.Contains(r.mustBerth("logs", "-p", name), "attempt") && strings.Contains(r.mustBerth("logs", name),
				"attempt")
		})
		r.mustBerth("stop", name)
		if got := restarts(name); got != "not running" {
			r.Errorf("after stop: %s", got)
		}
		r.mustBerth("start", name) // a new sandbox
		if a, b := restarts(name), restarts("side"); a != "2" || b != "4" {
			r.Errorf("after start: %s and %s", a, b)
		}
		if out := r.mustBerth("pods", "-q", "--name", "^"+name+"$"); len(strings.Fields(out)) != 1 {
			r.Errorf("the pod that was stopped is still there: %q", out)
		}
		if out := r.mustBerth("exec", name, "sh", "-c", "echo $KEPT; test -e /mine && echo runs"); out != "yes\nruns\n" {
			r.Errorf("what was asked for: %q", out)
		}
		r.mustBerth("start", name) // it runs already
		if got := restarts(name); got != "2" {
			r.Errorf("start of what runs: %s", got)
		}
		kube := r.pod()
		if _, stderr, code := r.berth("restart", kube.id); code != 2 || !strings.Contains(stderr, "not of berth run") {
			r.Errorf("a kubelet's pod: exit code %d: %s", code, stderr)
		}
	})
}

// TestHandsRestart has containers start again by themselves, as their policies say, and no other.
func TestHandsRestart(t *testing.T) {
	own(t, func(r rig) {
		image := ref("busybox:latest")
		run := func(name, policy, script string) {
			r.mustBerth("run", "-d", "--net", "host", "--log-dir", r.n.Logs, "--name", name, "--restart", policy, image, "sh",
				"-c", script)
			r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		}
		restarts := func(name string) (state string, times int) {
			var all struct {
				Containers []struct {
					Metadata struct{ Attempt int }
					State    string
				}
			}
			r.ok(json.Unmarshal([]byte(r.mustBerth("ps", "-a", "-o", "json", "--pod", name)), &all))
			for _, c := range all.Containers {
				if state == "" || c.Metadata.Attempt > times {
					state, times = strings.ToLower(strings.TrimPrefix(c.State, "CONTAINER_")), c.Metadata.Attempt
				}
			}
			return state, times
		}
		becomes := func(name, state string, times int) {
			r.Helper()
			r.eventually(fmt.Sprintf("%s is %s after %d restarts", name, state, times), func() bool {
				s, n := restarts(name)
				return s == state && n == times
			})
		}
		const loop = "trap 'exit 0' USR1 TERM; while :; do sleep 0.05; done"
		run("failing", "on-failure:1", "echo attempt; exit 3")
		run("done", "on-failure", "exit 0")
		run("kept", "always", loop)
		run("down", "unless-stopped", loop)
		becomes("failing", "exited", 1)
		becomes("done", "exited", 0)
		r.mustBerth("kill", "-s", "USR1", "kept")
		becomes("kept", "running", 1)
		if out := r.mustBerth("logs", "failing"); out != "attempt\n" {
			r.Errorf("the log of the last attempt: %q", out)
		}

		r.mustBerth("stop", "down")
		r.mustBerth("kill", "kept") // by its user: it does not come back
		becomes("down", "exited", 0)
		becomes("kept", "exited", 1)
		r.mustBerth("start", "kept")
		becomes("kept", "running", 2)
		pid := processIn(r, "kept")
		r.ok(r.n.Kill9()) // what ends without a daemon starts again with the next
		r.ok(syscall.Kill(pid, syscall.SIGUSR1))
		r.ok(r.n.Start())
		becomes("kept", "running", 3)
		for name, times := range map[string]int{"failing": 1, "done": 0, "down": 0} {
			if state, n := restarts(name); state != "exited" || n != times {
				r.Errorf("%s is %s after %d restarts", name, state, n)
			}
		}
		_, stderr, code := r.berth("run", "-d", "--restart", "sometimes", image)
		if code != 125 || !strings.Contains(stderr, "unless-stopped") {
			r.Errorf("a policy that is none: exit code %d: %s", code, stderr)
		}
		if _, stderr, code := r.berth("run", "--restart", "always", image); code != 125 || !strings.Contains(stderr, "-d") {
			r.Errorf("without -d: exit code %d: %s", code, stderr)
		}
	})
}

// processIn is the first process of the container that berth run made a pod for.
func processIn(r rig, name string) int {
	r.Helper()
	found := regexp.MustCompile(`"pid":\s*([0-9]+)`).FindStringSubmatch(r.mustBerth("inspect", name))
	if found == nil {
		r.Fatal("inspect tells no pid")
	}
	pid, err := strconv.Atoi(found[1])
	r.ok(err)
	return pid
}

// TestHandsCopy copies into a container and out of it.
func TestHandsCopy(t *testing.T) {
	each(t, func(r rig) {
		image, name, dir := ref("busybox:latest"), "copy-"+unique(r.T), r.TempDir()
		r.mustBerth("run", "-d", "--net", "host", "--log-dir", r.n.Logs, "--name", name, image, "sleep", "1000")
		r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		r.ok(os.MkdirAll(filepath.Join(dir, "src/d"), 0o755))
		r.ok(os.WriteFile(filepath.Join(dir, "src/d/f"), []byte("there and back"), 0o600))
		r.ok(os.Symlink("d/f", filepath.Join(dir, "src/l")))
		r.mustBerth("cp", filepath.Join(dir, "src"), name+":/tmp")
		if out := r.mustBerth("exec", name, "sh", "-c", "cat /tmp/src/l; stat -c %u:%a /tmp/src/d/f"); out != "there and "+
			"back0:600\n" {
			r.Errorf("in the container: %q", out)
		}
		r.mustBerth("cp", name+":/tmp/src/.", filepath.Join(dir, "dst"))
		back, err := os.ReadFile(filepath.Join(dir, "dst/l"))
		if string(back) != "there and back" {
			r.Errorf("it came back as %q, %v", back, err)
		}
		if out := r.mustBerth("cp", name+":/tmp/src/d/f", "-"); !strings.Contains(out, "there and back") {
			r.Errorf("as an archive: %q", out)
		}
		if _, stderr, code := r.berth("cp", name+":/no/such", dir); code != 3 || !strings.Contains(stderr, "no/such") {
			r.Errorf("what is not there: exit code %d: %s", code, stderr)
		}
	})
}
