package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// TestRuntimeKilledInCreate kills the runtime at moments of its create, told by what it has made until then and some
// time more, and looks for what Delete leaves: nothing, however little the runtime remembers.
func TestRuntimeKilledInCreate(t *testing.T) {
	g := newRig(t)
	for _, reached := range []struct {
		what string
		yet  func(ctr string, dirs []string) bool
	}{
		{"it runs", func(string, []string) bool { return true }},
		{"it has a directory", func(ctr string, _ []string) bool { return exists(filepath.Join(g.handler.Root, ctr)) }},
		{"one cgroup is made", func(_ string, dirs []string) bool { return made(dirs) > 0 }},
		{"half of the cgroups are made", func(_ string, dirs []string) bool { return made(dirs) > len(dirs)/2 }},
		{"all cgroups are made", func(_ string, dirs []string) bool { return made(dirs) == len(dirs) }},
		{"its state is written", func(ctr string, _ []string) bool {
			files, _ := filepath.Glob(filepath.Join(g.handler.Root, ctr, "stat*"))
			return len(files) > 0
		}},
	} {
		for _, later := range []int{0, 300, 1000, 2000, 5000} {
			g.killedCreate(reached.what, time.Duration(later)*time.Microsecond, reached.yet)
		}
	}
}

// killedCreate begins a create, kills the runtime when yet is true and a time later, and deletes the container. The
// runtime may be faster.
func (g *rig) killedCreate(what string, later time.Duration, yet func(ctr string, dirs []string) bool) {
	g.Helper()
	ctr := newID()
	c := Create{Container: ctr, Handler: g.handler, Spec: g.spec(ctr, "sleep 1000"), Deadline: deadline}
	dirs := c.cgroups()
	g.made = append(g.made, ctr)
	ended := make(chan error, 1)
	go func() {
		_, err := g.Create(g.Context(), g.pod, c)
		ended <- err
	}()
	helpers := cgroup.At(filepath.Join(g.cfg.containerGroup(ctr).Path(), "create"))
	var err error
	for done := false; !done; {
		select {
		case err = <-ended:
			done = true
		default:
			if pids, _ := helpers.Pids(); len(pids) > 0 && yet(ctr, dirs) {
				time.Sleep(later)
				_ = unix.Kill(pids[0], unix.SIGKILL)
				err, done = <-ended, true
			}
		}
	}
	there := made(dirs)
	g.ok(g.Delete(g.Context(), g.pod, ctr, g.handler))
	if n := made(dirs); n > 0 {
		g.Errorf("killed %v after %s (%v): %d of %d cgroups are left of %d", later, what, err, n, len(dirs), there)
	}
	if g.handler.remembers(ctr) {
		g.Errorf("killed %v after %s (%v): the runtime remembers it", later, what, err)
	}
	if left, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, ctr), "*")); len(left) > 0 &&
		!(len(left) == 1 && filepath.Base(left[0]) == exitFile) {
		g.Errorf("killed %v after %s: its bundle has %v", later, what, left)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), ctr) {
		g.Errorf("killed %v after %s: mounts are left", later, what)
	}
}

func made(dirs []string) (n int) {
	for _, d := range dirs {
		if exists(d) {
			n++
		}
	}
	return n
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestMountInTheStateOfARuntime deletes a container in whose state a runtime was killed while its copy of itself was
// mounted there, as runc before 1.2 has it at each create and exec. Such a mount keeps the runtime's own delete from
// removing the state, and the next one, by force, says that all went well.
func TestMountInTheStateOfARuntime(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	state := filepath.Join(g.handler.Root, ctr)
	at := filepath.Join(state, "runc.AbCdEf")
	g.ok(os.WriteFile(at, nil, 0o600))
	g.ok(unix.Mount(g.handler.Path, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		_ = os.RemoveAll(state)
	})
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	if g.handler.remembers(ctr) {
		left, _ := filepath.Glob(state + "/*")
		t.Errorf("the runtime remembers it: %v", left)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), ctr) {
		t.Error("the mount is left")
	}
}
