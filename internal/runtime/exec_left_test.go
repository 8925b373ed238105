package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCgroupsOfExecsThatLeaveAChild has execs leave a child that ends soon: their cgroups are gone with a later exec.
func TestCgroupsOfExecsThatLeaveAChild(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	for range 5 {
		g.exec(ctr, "usleep 3000000 >/dev/null 2>&1 &")
	}
	if len(g.execGroups(ctr)) == 0 {
		t.Fatal("no cgroup of an exec was found while a child of it lives")
	}
	g.within(15*time.Second, "their cgroups are gone", func() bool {
		g.exec(ctr, "true")
		return len(g.execGroups(ctr)) <= 2 // those of the last may be about to go
	})
}

// execGroups are the cgroups of execs, which may be in any hierarchy.
func (g *rig) execGroups(ctr string) (all []string) {
	for _, root := range []string{"/sys/fs/cgroup", g.cfg.Tracking} {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "exec-") && strings.Contains(path, ctr) {
				all = append(all, path)
			}
			return nil
		})
	}
	return all
}

// TestDescriptorsOfFailedCreates has creates fail after the runtime has sent the terminal: the monitor keeps nothing.
func TestDescriptorsOfFailedCreates(t *testing.T) {
	g := newRig(t)
	g.run("sleep 1000")
	real := g.handler.Path
	count := func() int {
		fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(g.monitor()), "fd"))
		g.ok(err)
		return len(fds)
	}
	bad := g.program("bad-runtime", "case \" $* \" in *' create '*) mkdir pid.tmp;; esac; exec "+real+" \"$@\"\n")
	fail := func() {
		ctr := newID()
		c := Create{Container: ctr, Handler: g.handler, Spec: g.spec(ctr, "sleep 1000"), Deadline: deadline, Terminal: true}
		c.Handler.Path, c.Spec.Process.Terminal = bad, true
		g.made = append(g.made, ctr)
		if _, err := g.Create(t.Context(), g.pod, c); err == nil {
			t.Fatal("a create whose pid cannot be written down succeeded")
		}
		if err := g.Delete(t.Context(), g.pod, ctr, g.handler); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	fail()
	before := count()
	for range 5 {
		fail()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors were %d before five creates failed", after, before)
	}
}
