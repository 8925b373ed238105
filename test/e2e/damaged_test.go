package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// TestUnreadableRecordKeepsLayers makes the record of a pod unreadable while its container runs, and removes an image
// that the container has mounted: the layers stay beneath it, also where nothing but the record would say which they
// are.
func TestUnreadableRecordKeepsLayers(t *testing.T) {
	own(t, func(r rig) {
		r.sub("with-identity", func(r rig) { r.unreadable(true) })
		r.sub("without", func(r rig) { r.unreadable(false) })
	})
}

// unreadable runs a container that has an image mounted, and replaces the record of its pod by one that a later release
// could have written, with and without the file that is for such a case.
func (r rig) unreadable(identity bool) {
	r.Helper()
	image := r.repository() + ":v1"
	r.push(image, r.small(fixture.Recipe{}, []fixture.File{{Name: "precious", Body: []byte("still there\n")}}))
	p := r.pod()
	id := r.imageID(image)
	running := p.start(busybox("main", "exec sleep 4711", imageMount(id, "/v")))
	pid := running.pid("sleep 4711")
	dir := filepath.Join(r.n.Root, "pods", p.id)
	r.ok(r.n.Stop())
	restore := map[string][]byte{}
	take := func(name string) {
		was, err := os.ReadFile(filepath.Join(dir, name))
		r.ok(err)
		r.ok(os.Remove(filepath.Join(dir, name)))
		restore[name] = was
	}
	take("record")
	r.ok(os.WriteFile(filepath.Join(dir, "record"), []byte("berth-record pod v99 sha256=00 len=0\n"), 0o600))
	if !identity {
		take("identity")
	}
	r.ok(r.n.Start())
	r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: id}))
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/v/precious", pid))
	if err != nil || string(got) != "still there\n" {
		r.Errorf("a layer was removed beneath a container that runs: %q, %v", got, err)
	}
	r.ok(r.n.Stop())
	for name, was := range restore { // mended by hand
		r.ok(os.WriteFile(filepath.Join(dir, name), was, 0o600))
	}
	r.ok(r.n.Start())
	p.remove()
}
