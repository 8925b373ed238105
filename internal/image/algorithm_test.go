package image

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// serve is a registry of what the source has, with one tag.
func (s testSource) serve(t *testing.T, tagged ocispec.Descriptor) (host string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		d := digest.Digest(name)
		if name == "v1" {
			d = tagged.Digest
		}
		body, ok := s.blobs[d]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		var doc struct{ MediaType string }
		if json.Unmarshal(body, &doc) == nil && doc.MediaType != "" {
			w.Header().Set("Content-Type", doc.MediaType)
		}
		w.Header().Set("Docker-Content-Digest", d.String())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if r.Method != http.MethodHead {
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// TestOtherAlgorithms has an image in which every digest is of another algorithm than the usual one. It must be found
// again after a restart, and share nothing by mistake with the same image of usual digests.
func TestOtherAlgorithms(t *testing.T) {
	for _, algorithm := range []digest.Algorithm{digest.SHA512, digest.SHA384, digest.SHA256} {
		t.Run(algorithm.String(), func(t *testing.T) {
			s := newTestSource(t)
			plain, finalized := gz(t, folder("d"), file("d/a", "1")), gz(t, file("d/b", "2"))
			m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
			var diffs []digest.Digest
			for _, l := range []packed{plain, finalized} {
				m.Layers = append(m.Layers, s.put(ocispec.MediaTypeImageLayerGzip, l.blob, algorithm))
				diffs = append(diffs, algorithm.FromBytes(l.plain))
			}
			m.Config = s.put(ocispec.MediaTypeImageConfig, ocispec.Image{
				Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
				RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: diffs},
			}, algorithm)
			manifest := s.put(ocispec.MediaTypeImageManifest, m, algorithm)
			manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
			index := s.put(ocispec.MediaTypeImageIndex,
				ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{manifest}}, algorithm)
			host, root := s.serve(t, index), t.TempDir()
			store := open(t, root, func(c *Config) { c.Platform = "linux/amd64" })
			img := pull(t, store, host+"/x:v1")
			if want := digest.FromBytes(s.blobs[m.Config.Digest]).String(); img.ID != want {
				t.Errorf("its id is %s, wanted %s", img.ID, want)
			}
			if again := pull(t, store, host+"/x@"+manifest.Digest.String()); again.ID != img.ID || len(again.RepoDigests) != 2 {
				t.Errorf("by digest: %+v", again)
			}
			sound(t, store)
			_ = store.Close()
			store = open(t, root)
			for _, name := range []string{img.ID, host + "/x:v1", host + "/x@" + manifest.Digest.String(),
				strings.TrimPrefix(img.ID, "sha256:")[:12]} {
				if got, ok := store.Get(name); !ok || got.ID != img.ID ||
					content(t, store, got, "d/a")+content(t, store, got, "d/b") != "12" {
					t.Errorf("%s after a restart: %+v", name, got)
				}
			}
			sound(t, store)
			if err := store.Remove(t.Context(), img.ID); err != nil || layersOnDisk(t, store) != 0 {
				t.Errorf("removal: %v, %d layers stay", err, layersOnDisk(t, store))
			}
		})
	}
}

// TestArtifactOfOtherAlgorithms has an artifact that is named, and has layers, by another algorithm than the usual one.
// It is one after a restart, too, and can be saved.
func TestArtifactOfOtherAlgorithms(t *testing.T) {
	s, root := newTestSource(t), t.TempDir()
	tree := plainLayer(t, file("leaf", "unpacked"))
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "a/b",
		Config: s.put(ocispec.MediaTypeEmptyJSON, []byte("{}"), digest.SHA512)}
	text := s.put("text/plain", []byte("x"), digest.SHA512)
	text.Annotations = map[string]string{ocispec.AnnotationTitle: "f"}
	m.Layers = append(m.Layers, text, s.put(ocispec.MediaTypeImageLayer, tree.blob, digest.SHA512))
	d := s.put(ocispec.MediaTypeImageManifest, m, digest.SHA512)
	host := s.serve(t, d)
	store := open(t, root)
	first := pull(t, store, host+"/x@"+d.Digest.String())
	for range 2 {
		got, ok := store.Get(first.ID)
		if !ok || got.Artifact != "a/b" || content(t, store, got, "f") != "x" ||
			content(t, store, got, "leaf") != "unpacked" {
			t.Errorf("the artifact is %+v", got)
		}
		if err := store.Export(t.Context(), ExportRequest{Images: []string{first.ID}}, io.Discard); err != nil {
			t.Errorf("export: %v", err)
		}
		sound(t, store)
		_ = store.Close()
		store = open(t, root)
	}
}

// TestUnknownAlgorithm has a digest that nobody here can prove.
func TestUnknownAlgorithm(t *testing.T) {
	store := open(t, t.TempDir())
	refused(t, store, PullRequest{Reference: "registry.example/x@md5:" + strings.Repeat("0", 32)},
		errdefs.ErrInvalidArgument, "unsupported digest algorithm")
}
