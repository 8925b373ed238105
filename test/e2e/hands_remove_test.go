package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestHandsRemove runs containers in the background that are removed at their end: by themselves, by a stop, in the pod
// of another, and with an end that no daemon saw.
func TestHandsRemove(t *testing.T) {
	t.Parallel() // it has nodes of its own, and mostly waits
	own(t, func(r rig) {
		image := ref("busybox:latest")
		const loop = "trap 'exit 0' USR1 TERM; while :; do sleep 0.05; done"
		run := func(name, script string, more ...string) {
			args := append([]string{"run", "-d", "--rm", "--name", name}, more...)
			r.mustBerth(append(args, image, "sh", "-c", script)...)
		}
		logs := []string{"--net", "host", "--log-dir", r.n.Logs}
		left := func(name string) bool {
			dirs, err := filepath.Glob(filepath.Join(r.n.Logs, name+"_*"))
			r.ok(err)
			return len(dirs) > 0 || r.mustBerth("ps", "-aq", "--name", "^"+name+"$") != "" ||
				r.mustBerth("pods", "-q", "--name", "^"+name+"$") != ""
		}
		goes := func(name string) {
			r.Helper()
			r.eventually(name+" is gone, with its pod and logs", func() bool { return !left(name) })
		}

		run("job", "sleep 1; exit 7", logs...)
		if !left("job") {
			r.Error("it is gone before its end")
		}
		if out := r.mustBerth("wait", "job"); strings.TrimSpace(out) != "7" {
			r.Errorf("who waits is told %q", out)
		}
		goes("job")

		run("web", loop, logs...)
		for _, command := range []string{"start", "restart"} {
			if _, stderr, code := r.berth(command, "web"); code == 0 || !strings.Contains(stderr, "was run with --rm") {
				r.Errorf("%s: exit code %d: %s", command, code, stderr)
			}
		}
		run("side", "true", "--pod", "web")
		goes("side")
		if !left("web") {
			r.Fatal("the pod went with a container that it was not made for")
		}
		r.mustBerth("stop", "web")
		goes("web")

		run("late", loop, logs...)
		pid := processIn(r, "late")
		r.ok(r.n.Kill9())
		r.ok(syscall.Kill(pid, syscall.SIGUSR1))
		r.ok(r.n.Start())
		goes("late")

		if _, stderr, code := r.berth("run", "-d", "--rm", "--restart", "always", image); code != 125 ||
			!strings.Contains(stderr, "do not go together") {
			r.Errorf("with a restart policy: exit code %d: %s", code, stderr)
		}
	})
}
