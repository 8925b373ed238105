package containerd

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/test/fixture"
)

// rig is a root that a test fills.
type rig struct {
	*testing.T
	*fixture.ContainerdRoot
}

func newRig(t *testing.T) rig {
	t.Helper()
	root, err := fixture.NewContainerdRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return rig{t, root}
}

// image adds an image of two layers under names, and returns what they lead to.
func (r rig) image(text string, names ...string) ocispec.Descriptor {
	r.Helper()
	img, err := fixture.Recipe{Layers: [][]fixture.File{
		{{Name: "a", Body: []byte(text)}}, {{Name: "b", Body: bytes.Repeat([]byte(text), 100)}},
	}}.Build()
	if err != nil {
		r.Fatal(err)
	}
	desc, err := r.Image(img)
	if err != nil {
		r.Fatal(err)
	}
	r.name(desc, names...)
	return desc
}

func (r rig) name(desc ocispec.Descriptor, names ...string) {
	r.Helper()
	for _, name := range names {
		if err := r.Name(DefaultNamespace, name, desc, nil); err != nil {
			r.Fatal(err)
		}
	}
}

// document adds a blob of JSON.
func (r rig) document(kind string, value any) ocispec.Descriptor {
	r.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		r.Fatal(err)
	}
	d, err := r.Blob(raw)
	if err != nil {
		r.Fatal(err)
	}
	return ocispec.Descriptor{MediaType: kind, Digest: d, Size: int64(len(raw))}
}

func (r rig) open() *Root {
	r.Helper()
	root, err := Open(r.Dir)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(root.Close)
	return root
}

// manifest is the manifest that desc leads to.
func (r rig) manifest(desc ocispec.Descriptor) (m ocispec.Manifest) {
	r.Helper()
	raw, err := os.ReadFile(r.Path(desc.Digest))
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		r.Fatal(err)
	}
	return m
}

// TestImages gathers the names of each image, and tells apart which of them a pod could use.
func TestImages(t *testing.T) {
	r := newRig(t)
	one, two := r.image("one"), r.image("two")
	byDigest := "quay.io/team/one@" + one.Digest.String()
	r.name(one, "quay.io/team/one:v1", byDigest, r.manifest(one).Config.Digest.String(), "busybox", "no good name")
	r.name(two, "quay.io/team/two@"+one.Digest.String())
	if err := r.Name(DefaultNamespace, "z.example/two:v2", two, map[string]string{
		pinnedLabel: pinnedValue, "io.cri-containerd.image": "managed",
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Name("other", "quay.io/team/three:v1", one, nil); err != nil {
		t.Fatal(err)
	}
	images, err := r.open().Images(DefaultNamespace)
	if err != nil || len(images) != 2 {
		t.Fatalf("%+v, %v", images, err)
	}
	first, second := images[0], images[1]
	if first.Name() != "quay.io/team/one:v1" {
		first, second = second, first
	}
	if first.Target.Digest != one.Digest || first.Target.Size != one.Size || first.Pinned ||
		!slices.Equal(first.Tags, []string{"quay.io/team/one:v1"}) ||
		!slices.Equal(first.Digests, []string{byDigest}) ||
		!slices.Equal(first.Odd, []string{"busybox", "no good name"}) {
		t.Errorf("%+v", first)
	}
	if second.Target.Digest != two.Digest || !second.Pinned || len(second.Digests) != 0 || len(second.Odd) != 1 {
		t.Errorf("%+v", second)
	}
	if _, err := r.open().Images("none"); err == nil || !strings.Contains(err.Error(), `it has "k8s.io", "other"`) {
		t.Errorf("of a namespace that is not there: %v", err)
	}
}

// TestLocked names a containerd that runs, which holds the lock of its metadata as bbolt takes it.
func TestLocked(t *testing.T) {
	r := newRig(t)
	r.image("one", "quay.io/team/one:v1")
	f, err := os.Open(filepath.Join(r.Dir, fixture.ContainerdMetadata))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := r.open().Images(DefaultNamespace); !errors.Is(err, ErrLocked) {
		t.Fatalf("%v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if images, err := r.open().Images(DefaultNamespace); len(images) != 1 || err != nil {
		t.Errorf("%v, %v", images, err)
	}
}

// TestDamagedMetadata is an error, whatever is wrong with the file.
func TestDamagedMetadata(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"cut":     func(path string) error { return os.Truncate(path, 9000) },
		"missing": os.Remove,
		"no bolt": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("noise"), 9000), 0o600) },
		"a FIFO": func(path string) error {
			return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
		},
		"a link away": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
		},
	} {
		r := newRig(t)
		r.image("one", "quay.io/team/one:v1")
		if err := damage(filepath.Join(r.Dir, fixture.ContainerdMetadata)); err != nil {
			t.Fatal(err)
		}
		if images, err := r.open().Images(DefaultNamespace); err == nil {
			t.Errorf("%s: %v", name, images)
		}
	}
}

// index is an index of manifests for platforms.
func (r rig) index(manifests map[string]ocispec.Descriptor, order ...string) ocispec.Descriptor {
	idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	idx.SchemaVersion = 2
	for _, name := range order {
		arch, variant, _ := strings.Cut(name, "/")
		m := manifests[name]
		m.Platform = &ocispec.Platform{OS: "linux", Architecture: arch, Variant: variant}
		idx.Manifests = append(idx.Manifests, m)
	}
	return r.document(ocispec.MediaTypeImageIndex, idx)
}

// absent is the manifest of an image that the root does not have.
func absent(text string) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(text), Size: int64(len(text)),
	}
}

// TestContent finds what an image consists of, by a manifest, and by an index of which containerd fetched one platform.
func TestContent(t *testing.T) {
	r := newRig(t)
	one := r.image("one")
	m := r.manifest(one)
	own := runtime.GOARCH
	for name, c := range map[string]struct {
		target, root ocispec.Descriptor
		documents    int
		err          string
	}{
		"manifest": {one, one, 2, ""},
		"index": {r.index(map[string]ocispec.Descriptor{own: one, "s390x": absent("s390x")}, "s390x", own),
			ocispec.Descriptor{}, 3, ""},
		"variants": {r.index(map[string]ocispec.Descriptor{"amd64/v3": absent("v3"), "amd64": one, "arm64": one},
			"amd64/v3", "amd64", "arm64"), one, 2, ""},
		"other platform": {r.index(map[string]ocispec.Descriptor{"s390x": one}, "s390x"), one, 0, "for this platform"},
		"no manifest":    {absent("none"), one, 0, "its manifest or config is not in the root"},
		"wrong size": {ocispec.Descriptor{Digest: one.Digest, Size: one.Size + 1}, one, 0,
			"it is damaged: it has"},
		"a path":       {ocispec.Descriptor{Digest: "sha256:../../../../etc/passwd", Size: 1}, one, 0, "digest"},
		"large":        {ocispec.Descriptor{Digest: one.Digest, Size: 1 << 40}, one, 0, "is no manifest"},
		"of an attest": {r.document(ocispec.MediaTypeImageIndex, ocispec.Index{}), one, 0, "for this platform"},
	} {
		if name == "variants" && own != "amd64" {
			continue
		}
		img := &Image{Target: c.target}
		content, err := r.open().Content(img)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) && !strings.Contains(err.Error(), "damaged") {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.root.Digest == "" {
			c.root = c.target
		}
		if content.Root.Digest != c.root.Digest || content.ID != m.Config.Digest || len(content.layers) != 2 ||
			len(content.documents) != c.documents {
			t.Errorf("%s: %+v", name, content)
		}
	}
}

// TestMissingLayers names the layers that containerd has thrown away.
func TestMissingLayers(t *testing.T) {
	r := newRig(t)
	one := r.image("one")
	gone := r.manifest(one).Layers[1].Digest
	if err := os.Remove(r.Path(gone)); err != nil {
		t.Fatal(err)
	}
	_, err := r.open().Content(&Image{Target: one})
	var missing *MissingError
	if !errors.As(err, &missing) || !slices.Equal(missing.Blobs, []string{gone.String()}) ||
		!strings.Contains(err.Error(), "1 of its 2 layers") ||
		!strings.Contains(err.Error(), "discard_unpacked_layers") {
		t.Errorf("%v", err)
	}
}

// TestWriteArchive writes an image with its names, each blob once.
func TestWriteArchive(t *testing.T) {
	r := newRig(t)
	one := r.image("one")
	m := r.manifest(one)
	m.Layers = append(m.Layers, m.Layers[0])
	again := r.document(ocispec.MediaTypeImageManifest, m)
	root := r.open()
	content, err := root.Content(&Image{Target: again})
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	names := []string{"quay.io/team/one:v1", "quay.io/team/one:v2"}
	if err := root.WriteArchive(t.Context(), &buf, content, names); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	tr := tar.NewReader(&buf)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name] != nil {
			t.Errorf("%s is there twice", h.Name)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var idx ocispec.Index
	if err := json.Unmarshal(files["index.json"], &idx); err != nil || len(idx.Manifests) != 2 || len(files) != 6 {
		t.Errorf("%v, %d files, %+v", err, len(files), idx)
	}
	for name, raw := range files {
		if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && digest.FromBytes(raw).Encoded() != hex {
			t.Errorf("%s is something else", name)
		}
	}
}

// TestHostileBlobs are found out: what is no file of the root, and what is not what its digest says.
func TestHostileBlobs(t *testing.T) {
	for name, spoil := range map[string]func(r rig, path string) error{
		"another byte": func(r rig, path string) error {
			raw, err := os.ReadFile(path)
			raw[len(raw)/2] ^= 1
			return errors.Join(err, os.Chmod(path, 0o600), os.WriteFile(path, raw, 0o600))
		},
		"shorter": func(r rig, path string) error { return os.Truncate(path, 5) },
		"a link out of the root": func(r rig, path string) error {
			outside := filepath.Join(r.TempDir(), "outside")
			return errors.Join(os.Rename(path, outside), os.Symlink(outside, path))
		},
		"a directory": func(r rig, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a FIFO": func(r rig, path string) error {
			return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
		},
	} {
		r := newRig(t)
		one := r.image("one")
		if err := spoil(r, r.Path(r.manifest(one).Layers[0].Digest)); err != nil {
			t.Fatal(name, err)
		}
		root := r.open()
		content, err := root.Content(&Image{Target: one})
		if err == nil {
			err = root.WriteArchive(t.Context(), io.Discard, content, []string{"quay.io/team/one:v1"})
		}
		var missing *MissingError
		if err == nil || errors.As(err, &missing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// artifactIn is what a root knows of an artifact that it has, but for the blobs that are taken away.
func artifactIn(t *testing.T, a fixture.Artifact, emptyConfig bool, away ...digest.Digest) (*Content, error) {
	t.Helper()
	r := newRig(t)
	target, err := r.Artifact(a, emptyConfig)
	if err == nil {
		err = r.Name("k8s.io", "models.example/a:v1", target, nil)
	}
	for _, d := range away {
		err = errors.Join(err, os.Remove(r.Path(d)))
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := Open(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	images, err := root.Images("k8s.io")
	if err != nil || len(images) != 1 {
		t.Fatalf("images %v, %v", images, err)
	}
	return root.Content(&images[0])
}

// TestArtifactOfARoot finds what an artifact consists of, and does without the config {}.
func TestArtifactOfARoot(t *testing.T) {
	a := fixture.Artifact{Type: "a/b", Blobs: []fixture.ArtifactBlob{{Title: "f", Body: []byte("of a")}}}
	own := fixture.Artifact{ConfigType: "application/vnd.cncf.helm.config.v1+json", Config: []byte(`{"name":"c"}`),
		Blobs: a.Blobs}
	for name, c := range map[string]struct {
		artifact  fixture.Artifact
		config    bool
		documents int
	}{"without its config": {a, false, 1}, "with it": {a, true, 2}, "with one of its own": {own, true, 2}} {
		content, err := artifactIn(t, c.artifact, c.config)
		if err != nil || content.Manifest != c.artifact.Digest() || len(content.documents) != c.documents ||
			len(content.layers) != 1 {
			t.Errorf("%s: %+v, %v", name, content, err)
		}
	}
	var missing *MissingError
	for name, d := range map[string]digest.Digest{
		"a config that says something": digest.FromBytes(own.Config), "a layer": own.Blobs[0].Descriptor().Digest,
	} {
		if _, err := artifactIn(t, own, true, d); !errors.As(err, &missing) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
