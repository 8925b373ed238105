package image

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/reference"
	"berth/internal/limit"
)

// The corpora are in testdata/fuzz: what registries really serve, and what nobody should.

// FuzzReference holds that what is accepted stays the same when it is read again, and names a host, a repository and
// one thing in it.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox", "a/b:c", "localhost:5000/x@sha256:" + strings.Repeat("a", 64), "[::1]:80/x",
		"UPPER", "x:y@z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := reference.Parse(s)
		if err != nil {
			return
		}
		again, err := reference.Parse(r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%q is %q, and that is %q, %v", s, r, again, err)
		}
		if r.Host() == "" || strings.ContainsAny(r.String(), " \x00\n\\") ||
			!strings.HasPrefix(r.Repository(), r.Host()+"/") {
			t.Errorf("%q became %q", s, r)
		}
		rest := strings.TrimPrefix(r.String(), r.Repository())
		if d := r.Digest(); d == "" && !strings.HasPrefix(rest, ":") || d != "" &&
			(rest != "@"+d.String() || d.Validate() != nil) {
			t.Errorf("%q names %q of %q", s, rest, r.Repository())
		}
		byDigest, err := reference.Parse(r.At(digest.FromString(s)))
		if err != nil || byDigest.Repository() != r.Repository() {
			t.Errorf("a digest of %q is %q, %v", r, byDigest, err)
		}
	})
}

// blobs is a source of a few blobs in memory.
type blobs map[digest.Digest][]byte

func (b blobs) open(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	raw, ok := b[desc.Digest]
	if !ok {
		return nil, fail.New(errdefs.ErrNotFound, "no %s", desc.Digest)
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

// chooserOf is one of its own for each input: nothing is remembered from another.
func chooserOf(t testing.TB, src source, platform string) *chooser {
	t.Helper()
	target, err := targetFor(platform)
	if err != nil {
		t.Fatal(err)
	}
	return &chooser{store: bare(func(c *Config) { c.MaxLayers = 20 }), src: src, platform: target}
}

// FuzzManifest feeds any bytes as manifest or index and any as config: what is accepted agrees with itself, and is
// accepted again when it is written anew.
func FuzzManifest(f *testing.F) {
	img := imageOf(f, gz(f, file("a", "1")))
	manifest, _ := img.RawManifest()
	config, _ := img.RawConfigFile()
	f.Add(manifest, config)
	f.Add(
		[]byte(
			`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:x","size":-1}]}`), config)
	f.Add([]byte(`{"schemaVersion":1,"fsLayers":[]}`), []byte("null"))
	f.Add([]byte(`{"layers":[],"manifests":[]}`), []byte("{}"))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		s := newTestSource(t)
		// The fuzzer knows no digests: whatever the manifest calls its config is the one.
		var named struct{ Config ocispec.Descriptor }
		_ = json.Unmarshal(manifest, &named)
		s.put("", config)
		if d := named.Config; d.Digest.Validate() == nil && d.Size == int64(len(config)) {
			manifest = bytes.ReplaceAll(manifest, []byte(d.Digest), []byte(digest.FromBytes(config)))
		}
		c := chooserOf(t, s.blobs, "linux/amd64")
		found, err := c.choose(t.Context(), s.put(ocispec.MediaTypeImageManifest, manifest))
		if err != nil {
			if n := len(failed("pull", err).Error()); n > 8<<10 {
				t.Errorf("an error of %d bytes", n)
			}
			return
		}
		holds(t, c, found)
		again, err := c.choose(t.Context(), s.put(ocispec.MediaTypeImageManifest, found.doc.Manifest))
		if err != nil || !reflect.DeepEqual(again.doc.Config, found.doc.Config) ||
			len(again.doc.Manifest.Layers) != len(found.doc.Manifest.Layers) {
			t.Errorf("written anew: %v", err)
		}
	})
}

// holds checks what is true of everything that was chosen.
func holds(t *testing.T, c *chooser, found *chosen) {
	t.Helper()
	layers, diffs := found.doc.Manifest.Layers, found.doc.Config.RootFS.DiffIDs
	raw, artifact := found.doc.RawConfig, found.doc.Artifact
	if artifact != nil { // nothing promises the diff ids of an artifact
		diffs, raw = make([]digest.Digest, len(artifact.Parts)), artifact.RawConfig
	}
	if len(layers) != len(diffs) || len(layers) > c.store.settings().MaxLayers || len(requestsOf(found)) != len(layers) {
		t.Errorf("%d layers, %d diff ids", len(layers), len(diffs))
	}
	names, lowers := map[string]bool{}, []string(nil)
	for _, w := range requestsOf(found) {
		proven := artifact != nil || w.diffID.Validate() == nil && w.chain.Validate() == nil
		if w.desc.Digest.Validate() != nil || !proven || w.desc.Size < 0 {
			t.Errorf("a layer to fetch is %+v", w)
		}
		id := finalizedID(w, stackName(lowers))
		if names[id] || strings.ContainsAny(blobID(w)+id, "/.:") {
			t.Errorf("a layer would be called %s or %s", blobID(w), id)
		}
		names[id], lowers = true, append(lowers, id)
	}
	if found.doc.Manifest.Config.Digest.Algorithm().FromBytes(raw) != found.doc.Manifest.Config.Digest {
		t.Error("the config is not the one promised")
	}
	if int64(c.visited) > limit.IndexManifests.Limit {
		t.Errorf("%d documents were read", c.visited)
	}
}

// FuzzIndex feeds any bytes as an index over a few images: what is chosen is one of them, and fits the platform by its
// own words or by the index's.
func FuzzIndex(f *testing.F) {
	known := newTestSource(f)
	var entries []ocispec.Descriptor
	for _, p := range []string{"linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/amd64", "linux/arm64",
		"windows/amd64"} {
		entries = append(entries, known.entry(p))
	}
	bare := known.image("linux/arm/v6", "bare")
	nested := known.index(entries[:3]...)
	for _, d := range [][]ocispec.Descriptor{entries, {bare}, {nested}, {entries[4], nested},
		{known.attestation(nil), entries[2]}, {known.chart(), bare}, {known.index(nested, bare)}} {
		f.Add(known.blobs[known.index(d...).Digest])
	}
	f.Fuzz(func(t *testing.T, index []byte) {
		src := blobs{}
		for d, raw := range known.blobs {
			src[d] = raw
		}
		c := chooserOf(t, src, "linux/arm/v6")
		found, err := c.choose(t.Context(), testSource{t, src}.put(ocispec.MediaTypeImageIndex, index))
		if err != nil {
			return
		}
		holds(t, c, found)
		said := found.doc.Descriptor.Platform
		if lone := found.doc.Descriptor.Digest == digest.FromBytes(index); lone ||
			c.platform.Match(platformOf(found.doc.Config)) {
			return
		}
		if said == nil || !c.platform.Match(*said) {
			t.Errorf("chosen for linux/arm/v6 is %+v, said to be for %+v", platformOf(found.doc.Config), said)
		}
	})
}

// FuzzConfig feeds any bytes as the config of an image with some layers: what is accepted has as many diff ids, can be
// recorded, and is the same when it is read from the record.
func FuzzConfig(f *testing.F) {
	config, _ := imageOf(f, gz(f, file("a", "1")), gz(f, file("b", "1"))).RawConfigFile()
	f.Add(config, uint8(2))
	f.Fuzz(func(t *testing.T, config []byte, layers uint8) {
		s := newTestSource(t)
		from := s.manifest(func(m *ocispec.Manifest) {
			m.Config = s.put(ocispec.MediaTypeImageConfig, config)
			for range layers % 8 {
				m.Layers = append(m.Layers, s.put(ocispec.MediaTypeImageLayer, []byte("x")))
			}
		})
		c := chooserOf(t, s.blobs, "linux/amd64")
		found, err := c.choose(t.Context(), from)
		if err != nil {
			return
		}
		holds(t, c, found)
		if name := platforms.Format(platformOf(found.doc.Config)); name == "" {
			t.Error("a platform without a name")
		}
		raw, err := json.Marshal(catalog.ImageRecord{Config: found.doc.RawConfig, Parsed: found.doc.Config})
		var rec catalog.ImageRecord
		if err == nil {
			err = json.Unmarshal(raw, &rec)
		}
		again, perr := document.ParseConfig(rec.Config)
		if err != nil || perr != nil || !reflect.DeepEqual(again, found.doc.Config) {
			t.Errorf("from a record: %v, %v", err, perr)
		}
	})
}
