package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layout is an OCI layout with all documents of the source, whose index has the entries.
func (s testSource) layout(entries ...ocispec.Descriptor) []byte {
	s.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, doc any) {
		raw, ok := doc.([]byte)
		if !ok {
			var err error
			if raw, err = json.Marshal(doc); err != nil {
				s.Fatal(err)
			}
		}
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(raw))})
		if err == nil {
			_, err = w.Write(raw)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	add("oci-layout", ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	for d, blob := range s.blobs {
		add("blobs/"+d.Algorithm().String()+"/"+d.Encoded(), blob)
	}
	index := ocispec.Index{Manifests: entries}
	index.SchemaVersion = 2
	add("index.json", index)
	if err := w.Close(); err != nil {
		s.Fatal(err)
	}
	return out.Bytes()
}

// program is an image with a layer and a command, whose config has the media type.
func (s testSource) program(configType, layerType string) ocispec.Descriptor {
	s.Helper()
	l := gz(s.TB, file("hello", "one"))
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	m.Layers = []ocispec.Descriptor{s.put(layerType, l.blob)}
	m.Config = s.put(configType, ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Config: ocispec.ImageConfig{Cmd: []string{"/hello"}},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(l.plain)}},
	})
	return s.put(ocispec.MediaTypeImageManifest, m)
}

func refNamed(d ocispec.Descriptor, name string) ocispec.Descriptor {
	d.Annotations = map[string]string{ocispec.AnnotationRefName: name}
	return d
}

// TestBesideImages imports layouts in which something lies beside an image that says something of it: the image is
// taken and nothing else, in each order. Alone it is refused, or is an artifact, as before.
func TestBesideImages(t *testing.T) {
	const name = "registry.example/app:v1"
	for what, c := range map[string]struct {
		make  func(s testSource, img ocispec.Descriptor) ocispec.Descriptor
		alone bool // it may be imported
	}{
		"a signature": {make: func(s testSource, _ ocispec.Descriptor) ocispec.Descriptor {
			return refNamed(s.manifest(func(m *ocispec.Manifest) {
				m.Layers = append(m.Layers, s.put("application/vnd.dev.cosign.simplesigning.v1+json", []byte("{}")))
			}), "registry.example/app:sha256-12.sig")
		}},
		"an attestation": {make: func(s testSource, _ ocispec.Descriptor) ocispec.Descriptor { return s.attestation(nil) }},
		"a referrer": {alone: true, make: func(s testSource, img ocispec.Descriptor) ocispec.Descriptor {
			return s.manifest(func(m *ocispec.Manifest) {
				m.ArtifactType, m.Config = "a/bundle", s.put(ocispec.MediaTypeEmptyJSON, []byte("{}"))
				m.Layers = append(m.Layers, s.put("a/bundle", []byte("{}")))
				m.Subject = &img
			})
		}},
	} {
		src := newTestSource(t)
		img := refNamed(src.program(ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayerGzip), name)
		other := c.make(src, img)
		for order, entries := range map[string][]ocispec.Descriptor{"after": {img, other}, "before": {other, img}} {
			s := open(t, t.TempDir())
			imgs, err := s.Import(t.Context(), bytes.NewReader(src.layout(entries...)), nil)
			if _, there := s.Get(name); err != nil || len(imgs) != 1 || !there {
				t.Errorf("%s %s: %d images, %v", what, order, len(imgs), err)
			}
			sound(t, s)
		}
		s := open(t, t.TempDir())
		if imgs, err := s.Import(t.Context(), bytes.NewReader(src.layout(other)), nil); err == nil != c.alone {
			t.Errorf("%s alone: %d images, %v", what, len(imgs), err)
		}
	}
}

// TestConfigWithoutAType pulls an image whose config has the type that Docker before 1.10.3 pushed, and what is an
// artifact all the same.
func TestConfigWithoutAType(t *testing.T) {
	const docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	for layerType, image := range map[string]bool{docker: true, ocispec.MediaTypeImageLayerGzip: false} {
		src := newTestSource(t)
		s := open(t, t.TempDir())
		host := src.serve(t, src.program("application/octet-stream", layerType))
		img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/old:v1"})
		if err != nil || (img.Artifact == "") != image || len(img.Config.Config.Cmd) > 0 != image {
			t.Errorf("layers of type %s: artifact %q, command %q, %v", layerType, img.Artifact, img.Config.Config.Cmd, err)
		}
		sound(t, s)
	}
}

// TestLayersThatAnImageLoses has an import give an image other layers than it had: those go without a further removal,
// unless a container has them, and then with the container.
func TestLayersThatAnImageLoses(t *testing.T) {
	for _, used := range []bool{false, true} {
		src := newTestSource(t)
		var held atomic.Pointer[[]string] // by a container
		s := open(t, t.TempDir(), func(c *Config) {
			c.InUse = func() (map[string]struct{}, bool) {
				in := map[string]struct{}{}
				if layers := held.Load(); layers != nil {
					for _, l := range *layers {
						in[l] = struct{}{}
					}
				}
				return in, true
			}
		})
		gzipped := src.program(ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayerGzip)
		before, err := s.Pull(t.Context(), PullRequest{Reference: src.serve(t, gzipped) + "/a:v1"})
		if err != nil {
			t.Fatal(err)
		}
		if used {
			held.Store(&before.Layers)
		}
		plain := newTestSource(t)
		l := gz(t, file("hello", "one"))
		m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
		m.SchemaVersion, m.Layers = 2, []ocispec.Descriptor{plain.put(ocispec.MediaTypeImageLayer, l.plain)}
		raw, err := before.RawConfig()
		if err != nil {
			t.Fatal(err)
		}
		m.Config = plain.put(ocispec.MediaTypeImageConfig, []byte(raw))
		imgs, err := s.Import(t.Context(), bytes.NewReader(plain.layout(plain.put(ocispec.MediaTypeImageManifest, m))), nil)
		if err != nil || len(imgs) != 1 || imgs[0].ID != before.ID || imgs[0].Layers[0] == before.Layers[0] {
			t.Fatalf("%v: the same image with other layers: %v, before %v", err, imgs, before)
		}
		has := func() bool { return s.catalog.Snapshot().Has(before.Layers[0]) }
		if used {
			s.sweeper.Collect(t.Context())
			if !has() {
				t.Fatal("a layer is gone that a container has")
			}
			held.Store(nil)
			Released(s, before.Layers)
		}
		until(t, "the layer is gone that the image has no more", func() bool { return !has() })
		if err := s.Remove(t.Context(), before.ID); err != nil || s.catalog.SwapFreed(false) {
			t.Errorf("after a removal, which sweeps, another sweep is wanted (%v)", err)
		}
		sound(t, s)
	}
}
