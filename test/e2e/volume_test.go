package e2e

import (
	"archive/tar"
	"os"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// declaring pushes an image that declares volumes: one that it holds, with a file of another user, one that it lacks, one
// behind a link, and some that no container can have.
func (r rig) declaring() (image string) {
	r.Helper()
	recipe, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe.Layers = append(append([][]fixture.File{}, recipe.Layers...), []fixture.File{
		{Name: "vol/", Mode: 0o770, UID: 1234, GID: 1234}, {Name: "vol/given", Body: []byte("of the image\n")},
		{Name: "real/", Mode: 0o755}, {Name: "alias", Type: tar.TypeSymlink, Link: "real"}, {Name: "all", Type: tar.TypeSymlink, Link: "/"},
	})
	recipe.Config.Volumes = map[string]struct{}{
		"/vol": {}, "/vol/below": {}, "/made/here": {}, "/alias/v": {}, "/all": {}, "/": {}, "/proc": {}, "/sys/fs/cgroup": {}, "/dev/shm": {}, "/etc": {},
	}
	img, err := recipe.Build()
	r.ok(err)
	repository := r.repository() + "-declaring:v1"
	r.push(repository, img)
	return r.pull(repository)
}

// writesToVolumes is a script that says where a container can write.
const writesToVolumes = `for d in / /vol /vol/below /made/here /alias/v /real /made /etc /proc /sys; do touch $d/new 2>/dev/null && echo -n "$d "; done; cat /vol/given /vol/new; grep -c . /etc/hosts >/dev/null && stat -c %u:%g:%a /vol`

// TestVolumeUnderReadOnlyRoot has the volumes that an image declares be writable where the root is read-only, and nothing else.
func TestVolumeUnderReadOnlyRoot(t *testing.T) {
	const want = "/vol /vol/below /made/here /alias/v /etc of the image\n1234:1234:770"
	frozen := security(func(s *v1.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true })
	each(t, func(r rig) {
		image := r.declaring()
		container := func(name, script string, edits ...edit) *v1.ContainerConfig {
			return node.Container(name, image, []string{"sh", "-c", script}, append(edits, frozen)...)
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
			const script = "cat /vol/given; touch /vol/new /vol/below/new 2>/dev/null && echo written; touch /real/v/new && echo other"
			r.wantText("read-only mount", p.output(container("ro", script, mount(dir, "/vol", readOnly))),
				"of the host\nother")
			r.wantText("by another name", p.output(container("alias", "touch /real/v/new 2>/dev/null || echo refused",
				mount(dir, "/real/v", readOnly))), "refused")
		})
		r.sub("writable root", func(r rig) {
			out := r.pod().output(node.Container("main", image, []string{"sh", "-c", "touch /new /vol/new && grep -c ' /vol ' /proc/mounts"},
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
