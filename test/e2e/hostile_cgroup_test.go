package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
)

// groupOf is the directory of a container's cgroup, in the hierarchy of a v1 controller where the host has that.
func (c *ctr) groupOf(controller string) string {
	c.Helper()
	if cgroup.Mode() == cgroup.V2 {
		controller = ""
	}
	path, err := cgroup.PathOf(c.pidOf(c.cid), controller)
	c.ok(err)
	return filepath.Join("/sys/fs/cgroup", controller, path)
}

// TestContainerNestsCgroups has cgroups in those of a container whose paths are longer than PATH_MAX, as one that may
// make cgroups can nest them. The container and its pod go like others.
func TestContainerNestsCgroups(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(p.as(busybox("main", "sleep 1000")))
		for _, controller := range []string{"memory", "pids"} {
			top := c.groupOf(controller)
			r.ok(nestGroups(top, 30))
			t.Cleanup(func() {
				if _, err := os.Lstat(top); err == nil {
					t.Errorf("%s is left", top)
				}
			})
			if cgroup.Mode() == cgroup.V2 {
				break
			}
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
	})
}

// nestGroups makes directories with long names in each other.
func nestGroups(top string, depth int) error {
	name := strings.Repeat("d", 200)
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		if err != nil {
			return err
		}
		made := unix.Mkdirat(at, name, 0o755)
		below, opened := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		at, err = below, errors.Join(made, opened)
	}
	_ = unix.Close(at)
	return err
}

// TestFrozenContainer has a container, or the cgroup of a pod that Berth has named, stand still: it is stopped and
// removed like others.
func TestFrozenContainer(t *testing.T) {
	each(t, func(r rig) {
		for name, up := range map[string]bool{"container": false, "pod": true} {
			r.sub(name, func(r rig) {
				p := r.pod()
				c := p.start(p.as(busybox("main", "sleep 1000")))
				dir := c.groupOf("freezer")
				if up {
					dir = filepath.Dir(dir)
				}
				file, word := "freezer.state", "FROZEN"
				if cgroup.Mode() == cgroup.V2 {
					file, word = "cgroup.freeze", "1"
				}
				pid := c.pidOf(c.cid)
				r.eventually("it stands still", func() bool {
					// Again each time: cgroup v1 passes over a process that cannot stand still at that moment.
					r.ok(cgroup.Write(filepath.Join(dir, file), word))
					return cgroup.Frozen(pid)
				})
				if !up {
					r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
					if s := c.status(); s.State != v1.ContainerState_CONTAINER_EXITED || s.ExitCode != 137 {
						r.Errorf("%v", s)
					}
				}
				r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
				r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
			})
		}
	})
}
