package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mount(host, inside string, more ...func(*v1.Mount)) edit {
	return func(c *v1.ContainerConfig) {
		m := &v1.Mount{HostPath: host, ContainerPath: inside}
		for _, f := range more {
			f(m)
		}
		c.Mounts = append(c.Mounts, m)
	}
}

func readOnly(m *v1.Mount) { m.Readonly = true }

func both(edits ...edit) edit {
	return func(c *v1.ContainerConfig) {
		for _, e := range edits {
			e(c)
		}
	}
}

// volume makes a folder with a few things to mount.
func (r rig) volume() string {
	r.Helper()
	dir, err := os.MkdirTemp(r.n.Dir, "volume-")
	r.ok(err)
	r.ok(os.Chmod(dir, 0o755))
	r.ok(os.MkdirAll(dir+"/real/sub", 0o755))
	r.ok(os.WriteFile(dir+"/file", []byte("from the host\n"), 0o644))
	r.ok(os.WriteFile(dir+"/real/note", []byte("real\n"), 0o644))
	r.ok(os.WriteFile(dir+"/real/sub/deep", []byte("deep\n"), 0o644))
	r.ok(os.Symlink("real", dir+"/link"))
	return dir
}

func TestMounts(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod()
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"directory", "cat /data/note; touch /data/made && echo rw", "real\nrw", mount(dir+"/real", "/data")},
			{"file", "cat /etc/given", "from the host", mount(dir+"/file", "/etc/given")},
			{"over-file", "cat /etc/passwd", "from the host", mount(dir+"/file", "/etc/passwd")},
			{"over-hosts", "cat /etc/hosts", "from the host", mount(dir+"/file", "/etc/hosts")},
			{"symlink", "cat /data/note", "real", mount(dir+"/link", "/data")},
			{"made-parents", "cat /a/b/c/note", "real", mount(dir+"/real", "/a/b/c")},
			{"read-only", "cat /data/note; touch /data/x 2>/dev/null || echo refused", "real\nrefused",
				mount(dir+"/real", "/data", readOnly)},
			{"nested-in-odd-order", "cat /data/note /data/sub/note", "real\nreal",
				both(mount(dir+"/real", "/data/sub"), mount(dir+"/real", "/data"))},
			{"own-shm", "cat /dev/shm/note", "real", mount(dir+"/real", "/dev/shm")},
		} {
			ctr := p.start(busybox(c.name, c.script, c.edit))
			st := ctr.finish()
			r.wantText(c.name, ctr.text("stdout"), c.want)
			if len(st.Mounts) == 0 || st.Mounts[0].ContainerPath == "" || st.Mounts[0].HostPath == "" {
				r.Errorf("%s: the status shows mounts %v", c.name, st.Mounts)
			}
		}
		if _, err := os.Stat(dir + "/real/made"); err != nil {
			r.Error("what the container wrote is not on the host")
		}
	})
}

// TestMountLeavesTheRoot checks that a link in the image does not lead a mount out of the container's root.
func TestMountLeavesTheRoot(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod()
		outside := filepath.Join(r.n.Dir, "outside-"+unique(r.T))
		config := busybox("first", "ln -s "+outside+" /tmp/trap; cat /tmp/trap/note || ls -l /tmp")
		config.Mounts = []*v1.Mount{{HostPath: dir + "/real", ContainerPath: "/proc/self/root" + outside}}
		if id, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config); err == nil {
			_ = r.n.Runtime.StartContainer(ctx(), id)
		}
		if _, err := os.Stat(outside); err == nil {
			r.Errorf("a mount point appeared outside the container, at %s", outside)
		}
	})
}

// TestMissingMountSource has the node's directory made, as a hostPath without a type wants it, but not through a link
// to nowhere.
func TestMissingMountSource(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		dir := r.volume()
		absent := filepath.Join(dir, "absent", "deep")
		ctr := p.start(busybox("good", "sleep 100", mount(absent, "/data")))
		ctr.exec("touch", "/data/here")
		if _, err := os.Stat(absent + "/here"); err != nil {
			r.Error(err)
		}
		if info, err := os.Stat(absent); err != nil || info.Mode().Perm() != 0o755 {
			r.Errorf("the source: %v, %v", info, err)
		}
		dangling := filepath.Join(dir, "dangling")
		r.ok(os.Symlink("/nowhere/at/all", dangling))
		id, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", mount(dangling, "/data")), p.config)
		if err == nil || !strings.Contains(err.Error(), dangling) {
			r.Errorf("a link to nowhere gave %q and %v", id, err)
		}
		p.wantNoContainer("bad")
	})
}

// TestPropagation makes mounts on either side after the container started, and looks for them on the other.
func TestPropagation(t *testing.T) {
	with := func(p v1.MountPropagation) func(*v1.Mount) { return func(m *v1.Mount) { m.Propagation = p } }
	each(t, func(r rig) {
		privileged := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		for _, c := range []struct {
			name           string
			kind           v1.MountPropagation
			inward, upward bool
		}{
			{"private", v1.MountPropagation_PROPAGATION_PRIVATE, false, false},
			{"to-container", v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, true, false},
			{"both-ways", v1.MountPropagation_PROPAGATION_BIDIRECTIONAL, true, true},
		} {
			r.sub(c.name, func(r rig) {
				dir := r.volume() + "/real"
				r.ok(os.MkdirAll(dir+"/from-host", 0o755))
				r.ok(os.MkdirAll(dir+"/from-inside", 0o755))
				ctr := p.on(r).start(busybox(c.name, "sleep 100", both(mount(dir, "/data", with(c.kind)), privileged)))
				r.mountInside(dir+"/from-host", 0)
				got := strings.Contains(ctr.exec("cat", "/proc/mounts"), "/data/from-host")
				if got != c.inward {
					r.Errorf("a mount of the host shows in the container: %v, wanted %v", got, c.inward)
				}
				ctr.exec("mount", "-t", "tmpfs", "none", "/data/from-inside")
				if got := r.isMounted(dir + "/from-inside"); got != c.upward {
					r.Errorf("a mount of the container shows on the host: %v, wanted %v", got, c.upward)
				}
				r.ok(r.n.Runtime.RemoveContainer(ctx(), ctr.cid))
				r.unmountInside(dir + "/from-inside")
			})
		}
	})
}

// mountInside mounts a tmpfs in the node's mount namespace until the test is over.
func (r rig) mountInside(dir string, flags uintptr) {
	r.Helper()
	r.ok(r.n.Space.Do(func() error { return unix.Mount("none", dir, "tmpfs", flags, "") }))
	r.Cleanup(func() { r.unmountInside(dir) })
}

func (r rig) unmountInside(dir string) {
	_ = r.n.Space.Do(func() error { return unix.Unmount(dir, unix.MNT_DETACH) })
}

func (r rig) isMounted(dir string) bool {
	r.Helper()
	found := false
	r.ok(r.n.Space.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/mountinfo")
		found = strings.Contains(string(data), " "+dir+" ")
		return err
	}))
	return found
}

// TestSharedSourceIsRequired checks that propagation that cannot work is refused and not silently dropped.
func TestSharedSourceIsRequired(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod()
		r.mountInside(dir+"/real", 0)
		r.ok(r.n.Space.Do(func() error { return unix.Mount("", dir+"/real", "", unix.MS_PRIVATE, "") }))
		config := busybox("bad", "true", mount(dir+"/real", "/data", func(m *v1.Mount) {
			m.Propagation = v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}))
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
		if err == nil || !strings.Contains(err.Error(), "shared") {
			r.Errorf("bidirectional propagation of a private mount gave %v", err)
		}
	})
}

// TestRootIsPrivate checks that two containers of one image do not see each other's files, and that they go away.
func TestRootIsPrivate(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		a := p.start(busybox("a", "echo mine > /tmp/mine; echo up; sleep 100"))
		a.logged("up")
		r.wantText("/tmp of another container", p.output(busybox("b", "ls /tmp")), "")
		r.ok(r.n.Runtime.RemoveContainer(ctx(), a.cid))
		for _, dir := range []string{r.n.Root, r.n.State} {
			if found, _ := filepath.Glob(dir + "/pods/" + p.id + "/c/" + a.cid); len(found) != 0 {
				r.Errorf("left after the container was removed: %v", found)
			}
		}
		if r.isMounted(r.n.State + "/pods/" + p.id + "/c/" + a.cid + "/rootfs") {
			r.Error("the root is still mounted")
		}
	})
}
