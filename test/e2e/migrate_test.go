package e2e

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// TestMigrateContainerd takes an image from the root of a containerd, of an index of which that has this platform
// alone. A pod runs it by both its names, and a pull finds that it has not changed. An image with a damaged
// layer fails alone.
func TestMigrateContainerd(t *testing.T) {
	own(t, func(r rig) {
		old, err := fixture.NewContainerdRoot(r.TempDir())
		r.ok(err)
		repo := r.repository() + "-old"
		name := ref(repo + ":v1")
		manifest, target := r.oldImage(old, repo)
		byDigest := ref(repo) + "@" + target.Digest.String()
		for _, n := range []string{name, byDigest} {
			r.ok(old.Name("k8s.io", n, target, nil))
		}
		bad := r.damaged(old)
		r.ok(old.Name("k8s.io", "bad.example/app:v1", bad, nil))
		model := fixture.Artifact{Type: "application/vnd.example.model", Blobs: []fixture.ArtifactBlob{
			{Title: "weights/a", Body: []byte("of an artifact")}}}
		target, err = old.Artifact(model, false)
		r.ok(err)
		r.ok(old.Name("k8s.io", "models.example/a:v1", target, nil))
		args := []string{"migrate", "containerd", "--only", "images", "--root", old.Dir, "--into", r.TempDir()}
		out, stderr, code := r.berth(args...)
		if code != 1 || !strings.Contains(out, name+": taken over") ||
			!strings.Contains(out, "bad.example/app:v1: not taken over: read the archive: "+
				"sha256:") || !strings.Contains(stderr, "1 of 3 images") ||
			!strings.Contains(out, "models.example/a:v1: taken over") {
			r.Fatalf("code %d: %s%s", code, out, stderr)
		}
		img := r.image(name)
		if img == nil || r.image(byDigest).GetId() != img.Id || strings.Join(img.RepoDigests, " ") != byDigest {
			r.Fatalf("%v", img)
		}
		for _, n := range []string{name, byDigest} {
			out := r.pod().output(node.Container("old", n, []string{"cat", "/srv/note"}))
			r.wantText(n, out, "from containerd")
		}
		files := r.pod().output(busybox("model", "cat /v/weights/a", imageMount("models.example/a:v1", "/v")))
		r.wantText("an artifact", files, "of an artifact")
		r.ok(os.Remove(shared.registry.BlobPath(ggcr.Hash{Algorithm: "sha256", Hex: manifest.Encoded()})))
		r.ok(r.tryPull(name, nil)) // it asks what the tag leads to, and nothing more
		out, _, code = r.berth(args...)
		if code != 1 || !strings.Contains(out, name+": is here already") ||
			!strings.Contains(out, "models.example/a:v1: is here already\n") {
			r.Errorf("again: code %d: %s", code, out)
		}
		if out := r.mustBerth("check"); out != "nothing is wrong\n" {
			r.Errorf("check: %s", out)
		}
	})
}

// oldIndex is an index of two platforms in the registry, and the image for this machine.
func (r rig) oldIndex(repo string) (raw []byte, index digest.Digest, img ggcr.Image) {
	r.Helper()
	recipe, err := fixture.BusyboxRecipe()
	r.ok(err)
	recipe.Layers = append(recipe.Layers, []fixture.File{
		{Name: "srv/note", Body: []byte("from containerd")},
		{Name: "srv/of", Body: []byte(rand.Text())}, // its blob is removed from the registry: no other image has it
	})
	img, err = recipe.Build()
	r.ok(err)
	recipe.Platform = &ggcr.Platform{OS: "linux", Architecture: "s390x"}
	other, err := recipe.Build()
	r.ok(err)
	both, err := fixture.Index(other, img)
	r.ok(err)
	_, err = shared.registry.PushIndex(repo+":v1", both)
	r.ok(err)
	raw, err = both.RawManifest()
	r.ok(err)
	return raw, digest.FromBytes(raw), img
}

// oldImage is such an index in the registry, of which the root has this machine's image.
func (r rig) oldImage(old *fixture.ContainerdRoot, repo string) (manifest digest.Digest, index ocispec.Descriptor) {
	r.Helper()
	raw, _, img := r.oldIndex(repo)
	desc, err := old.Image(img)
	r.ok(err)
	d, err := old.Blob(raw)
	r.ok(err)
	return desc.Digest, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: d, Size: int64(len(raw))}
}

// damaged is an image in the root, one byte of whose layer is another.
func (r rig) damaged(old *fixture.ContainerdRoot) ocispec.Descriptor {
	r.Helper()
	img, err := fixture.Recipe{Layers: [][]fixture.File{{{Name: "a", Body: []byte(r.Name())}}}}.Build()
	r.ok(err)
	desc, err := old.Image(img)
	r.ok(err)
	layers, err := img.Layers()
	r.ok(err)
	d, err := layers[0].Digest()
	r.ok(err)
	path := old.Path(digest.Digest(d.String()))
	raw, err := os.ReadFile(path)
	r.ok(err)
	raw[len(raw)/2] ^= 1
	r.ok(os.Chmod(path, 0o600))
	r.ok(os.WriteFile(path, raw, 0o600))
	return desc
}
