package image

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzReference holds that what is accepted stays the same when it is read again.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox", "a/b:c", "localhost:5000/x@sha256:" + strings.Repeat("a", 64), "[::1]:80/x", "UPPER", "x:y@z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			return
		}
		again, err := ParseReference(r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%q is %q, and that is %q, %v", s, r, again, err)
		}
		if r.Host() == "" || strings.ContainsAny(r.String(), " \x00\n") {
			t.Errorf("%q became %q", s, r)
		}
	})
}

// blobs is a source of a few blobs in memory.
type blobs map[digest.Digest][]byte

func (b blobs) open(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	raw, ok := b[desc.Digest]
	if !ok {
		return nil, errorf(NotFound, "no %s", desc.Digest)
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

// FuzzManifest feeds any bytes as manifest or index and any as config: what is accepted agrees with itself.
func FuzzManifest(f *testing.F) {
	img := imageOf(f, gz(f, file("a", "1")))
	manifest, _ := img.RawManifest()
	config, _ := img.RawConfigFile()
	f.Add(manifest, config)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:x","size":-1}]}`), config)
	f.Add([]byte(`{"schemaVersion":1,"fsLayers":[]}`), []byte("null"))
	f.Add([]byte(`{"layers":[],"manifests":[]}`), []byte("{}"))
	s := open(f, f.TempDir())
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		src := blobs{digest.FromBytes(manifest): manifest, digest.FromBytes(config): config}
		c := &chooser{store: s.pipeline, src: src, platform: s.platform}
		found, err := c.choose(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))})
		if err != nil {
			return
		}
		if len(found.config.RootFS.DiffIDs) != len(found.manifest.Layers) || len(chainIDs(found.config.RootFS.DiffIDs)) != len(found.manifest.Layers) {
			t.Error("manifest and config disagree")
		}
		if digest.FromBytes(found.rawConfig) != found.manifest.Config.Digest {
			t.Error("the config is not the one promised")
		}
	})
}
