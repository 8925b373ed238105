package runtime

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// nest moves the container's first process into a cgroup below the container's, as an init system in it does, in each
// hierarchy that lets it.
func (g *rig) nest(ctr string) {
	g.Helper()
	b, err := g.cfg.bundleOf(g.pod, ctr)
	g.ok(err)
	moved := 0
	for _, dir := range b.Cgroups {
		nested := filepath.Join(dir, "init.scope")
		if os.Mkdir(nested, 0o755) != nil {
			continue // the runtime makes none there
		}
		pid := strconv.Itoa(g.processOf(ctr).PID)
		if os.WriteFile(filepath.Join(nested, "cgroup.procs"), []byte(pid), 0o644) == nil {
			moved++
		}
	}
	if moved == 0 {
		g.Fatalf("the process could be moved in none of %v", b.Cgroups)
	}
}

// TestExecBesideANestedCgroup has a container's first process move into a cgroup of its own: execs go on, and their
// groups are beside that one, also under a monitor that takes over.
func TestExecBesideANestedCgroup(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	g.nest(ctr)
	works := func(when string) {
		t.Helper()
		if out, code := g.exec(ctr, "echo hi"); code != 0 || out != "hi\n" {
			t.Errorf("%s: code %d, %q", when, code, out)
		}
	}
	works("before")
	g.killMonitor()
	works("under the next monitor")
	g.killMonitor()
	works("under the one after")
	g.nothingLeft(ctr)
}
