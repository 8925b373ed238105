package e2e

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// declaring pushes an image that declares volumes: one that it holds, with a file of another user, one that it lacks,
// one behind a link, and some that no container can have.
func (r rig) declaring() (image string) {
	r.Helper()
	recipe, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe.Layers = append(append([][]fixture.File{}, recipe.Layers...), []fixture.File{
		{Name: "vol/", Mode: 0o770, UID: 1234, GID: 1234}, {Name: "vol/given", Body: []byte("of the image\n")},
		{Name: "real/", Mode: 0o755}, {Name: "alias", Type: tar.TypeSymlink, Link: "real"},
		{Name: "all", Type: tar.TypeSymlink, Link: "/"},
	})
	recipe.Config.Volumes = map[string]struct{}{
		"/vol": {}, "/vol/below": {}, "/made/here": {}, "/alias/v": {}, "/all": {}, "/": {}, "/proc": {},
		"/sys/fs/cgroup": {}, "/dev/shm": {}, "/etc": {},
	}
	img, err := recipe.Build()
	r.ok(err)
	repository := r.repository() + "-declaring:v1"
	r.push(repository, img)
	return r.pull(repository)
}

// writesToVolumes is a script that says where a container can write.
const writesToVolumes = `for d in / /vol /vol/below /made/here /alias/v /real /made /etc /proc /sys; do touch $d/new 2>/dev/null && echo -n "$d "; done; cat /vol/given /vol/new; grep -c . /etc/hosts >/dev/null && stat -c %u:%g:%a /vol`

// TestVolumeUnderReadOnlyRoot has the volumes that an image declares be writable where the root is read-only, and
// nothing else.
func TestVolumeUnderReadOnlyRoot(t *testing.T) {
	const want = "/vol /vol/below /made/here /alias/v /etc of the image\n1234:1234:770"
	each(t, func(r rig) {
		image := r.declaring()
		container := func(name, script string, edits ...edit) *v1.ContainerConfig {
			return node.Container(name, image, []string{"sh", "-c", script}, append(edits, frozenRoot)...)
		}
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
			r.sub(name, func(r rig) {
				p := r.pod(edits...)
				r.wantText("what can be written", p.output(p.as(container("main", writesToVolumes))), want)
				c := p.start(p.as(container("room", "head -c 3000000 /dev/zero > /vol/big; echo written; sleep 1000")))
				c.logged("written")
				c.stats()
				r.eventually("what is in a volume counts to the writable layer", func() bool {
					return c.stats().WritableLayer.UsedBytes.GetValue() >= 3000000
				})
			})
		}
		r.sub("a mount of the request wins", func(r rig) {
			dir := r.TempDir()
			r.ok(os.WriteFile(dir+"/given", []byte("of the host\n"), 0o644))
			p := r.pod()
			const script = "cat /vol/given; touch /vol/new /vol/below/new 2>/dev/null && echo written; touch /real/v/new && " +
				"echo other"
			r.wantText("read-only mount", p.output(container("ro", script, mount(dir, "/vol", readOnly))),
				"of the host\nother")
			r.wantText("by another name", p.output(container("alias", "touch /real/v/new 2>/dev/null || echo refused",
				mount(dir, "/real/v", readOnly))), "refused")
		})
		r.sub("writable root", func(r rig) {
			out := r.pod().output(node.Container("main", image, []string{"sh", "-c", "touch /new /vol/new && grep -c ' /vol ' " +
				"/proc/mounts"},
				func(c *v1.ContainerConfig) { c.Command[2] += " || true" }))
			r.wantText("mounts at the volume", out, "0")
		})
	})
}

// TestVolumeInSandbox does the same where containers are in a sandbox.
func TestVolumeInSandbox(t *testing.T) {
	t.Parallel()
	for name, tables := range sandboxes(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: node.Runc, Tables: tables})
			image := r.declaring()
			const script = `for d in / /vol /made/here; do touch $d/new 2>/dev/null && echo -n "$d "; done; cat /vol/given`
			out := sandbox{r, name}.podOf(name).output(node.Container("main", image, []string{"sh", "-c", script},
				security(func(s *v1.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true })))
			r.wantText("what can be written", out, "/vol /made/here of the image")
		})
	}
}

// hostile pushes an image with these files over busybox, and these volumes.
func (r rig) hostile(name string, files []fixture.File, volumes ...string) (image string) {
	r.Helper()
	recipe, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe.Layers = append(append([][]fixture.File{}, recipe.Layers...), files)
	recipe.Config.Volumes = map[string]struct{}{}
	for _, v := range volumes {
		recipe.Config.Volumes[v] = struct{}{}
	}
	img, err := recipe.Build()
	r.ok(err)
	repository := r.repository() + "-" + name + ":v1"
	r.push(repository, img)
	return r.pull(repository)
}

// directory is a directory of the host that everybody may write to, with a file note and a directory sub.
func (r rig) directory() string {
	r.Helper()
	dir := r.volume() + "/real"
	r.ok(os.Chmod(dir, 0o777))
	r.ok(os.Chmod(dir+"/sub", 0o777))
	return dir
}

// frozenRoot is a read-only root.
var frozenRoot = security(func(s *v1.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true })

// TestImageChoosesNoPathOfTheHost has images with a path that is not UTF-8, and a link to the host under the name that
// JSON makes of it. Neither a volume nor a part of an image volume may be found there.
func TestImageChoosesNoPathOfTheHost(t *testing.T) {
	each(t, func(r rig) {
		dir := r.directory()
		files := []fixture.File{
			{Name: "\xff/", Mode: 0o755}, {Name: "alias", Type: tar.TypeSymlink, Link: "\xff"},
			{Name: "\ufffd", Type: tar.TypeSymlink, Link: dir}, {Name: dir[1:] + "/", Mode: 0o755},
		}
		volume, part := r.hostile("volume", files, "/alias"), r.hostile("part", files)
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
			p := r.pod(append(edits, func(c *v1.PodSandboxConfig) { c.Metadata.Name += name })...)
			config := p.as(node.Container("volume", volume, []string{"touch", dir + "/written"}, frozenRoot))
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
			r.wantCode(err, codes.InvalidArgument, "not UTF-8")
			config = p.as(busybox("part", "cat /v/note", func(c *v1.ContainerConfig) {
				c.Mounts = append(c.Mounts,
					&v1.Mount{Image: &v1.ImageSpec{Image: part}, ContainerPath: "/v", Readonly: true, ImageSubPath: "alias"})
			}))
			if id, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config); err != nil {
				r.wantCode(err, codes.InvalidArgument, "not UTF-8")
			} else { // with a user namespace Berth mounts it itself, which needs no JSON
				r.ok(r.n.Runtime.StartContainer(ctx(), id))
				c := &ctr{p, id, filepath.Join(p.config.LogDirectory, config.LogPath)}
				if st := c.finish(); st.ExitCode == 0 || strings.Contains(c.text("stdout"), "real") {
					r.Errorf("%s: the image has shown a file of the host: exit code %d, %q", name, st.ExitCode, c.text("stdout"))
				}
			}
		}
	})
}

// TestVolumesLeaveMountsAlone has images whose links lead from where the request mounts something to, or below, a
// volume. The mount is what is there, and it stays read-only where it is.
func TestVolumesLeaveMountsAlone(t *testing.T) {
	each(t, func(r rig) {
		for _, c := range []struct {
			name, volume, at string
			files            []fixture.File
		}{
			{"above", "/var/lib/app", "/data", []fixture.File{
				{Name: "var/lib/app/data/", Mode: 0o755}, {Name: "data", Type: tar.TypeSymlink, Link: "/var/lib/app/data"},
			}},
			{"below", "/real/d/sub", "/data", []fixture.File{
				{Name: "real/", Mode: 0o755}, {Name: "data", Type: tar.TypeSymlink, Link: "/real/d"},
			}},
			{"files", "/usr/local/etc", "/conf", []fixture.File{
				{Name: "usr/local/etc/run/", Mode: 0o755}, {Name: "conf", Type: tar.TypeSymlink, Link: "/usr/local/etc/run"},
			}},
		} {
			image := r.hostile(c.name, c.files, c.volume)
			for how, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
				dir := r.directory()
				p := r.pod(append(edits, func(config *v1.PodSandboxConfig) { config.Metadata.Name += c.name + how })...)
				script := fmt.Sprintf("cat %[1]s/note; touch %[1]s/new %[1]s/sub/new 2>/dev/null; echo done", c.at)
				out := p.output(
					p.as(node.Container("ro", image, []string{"sh", "-c", script}, mount(dir, c.at, readOnly), frozenRoot)))
				r.wantText(c.name+", "+how+", read-only", out, "real\ndone")
				for _, file := range []string{"/new", "/sub/new"} {
					if _, err := os.Stat(dir + file); err == nil {
						r.Errorf("%s, %s: the host's %s was written through a read-only mount", c.name, how, file)
					}
				}
				out = p.output(p.as(node.Container("rw", image, []string{"sh", "-c", script}, mount(dir, c.at), frozenRoot)))
				r.wantText(c.name+", "+how+", writable", out, "real\ndone")
				for _, file := range []string{"/new", "/sub/new"} {
					if _, err := os.Stat(dir + file); err != nil {
						r.Errorf("%s, %s: what was written to the mount is not on the host: %v", c.name, how, err)
					}
				}
			}
		}
	})
}
