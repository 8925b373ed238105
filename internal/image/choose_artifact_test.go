package image

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/test/fixture"
)

// file adds an artifact of one file, and says its type where an index does.
func (s testSource) file(kind string) ocispec.Descriptor {
	d := s.manifest(func(m *ocispec.Manifest) {
		m.ArtifactType, m.Config = kind, s.put(ocispec.MediaTypeEmptyJSON, []byte("{}"))
		m.Layers = append(m.Layers, s.put("text/plain", []byte("of "+kind)))
	})
	d.ArtifactType = kind
	return d
}

// TestArtifactsOfAnIndex takes artifacts where there are no images: one for the platform, or the first of those for
// all.
func TestArtifactsOfAnIndex(t *testing.T) {
	s := newTestSource(t)
	on := func(d ocispec.Descriptor, os, arch string) ocispec.Descriptor {
		d.Platform = &ocispec.Platform{OS: os, Architecture: arch}
		return d
	}
	untyped := func(d ocispec.Descriptor) ocispec.Descriptor { d.ArtifactType = ""; return d }
	mine, other := s.entry("linux/amd64"), s.entry("linux/s390x")
	signature := s.manifest(func(m *ocispec.Manifest) {
		m.ArtifactType, m.Config = "a/sig", s.put(ocispec.MediaTypeEmptyJSON, []byte("{}"))
		m.Layers = append(m.Layers, s.put("text/plain", []byte("x")))
	})
	for name, c := range map[string]struct {
		from ocispec.Descriptor
		want string // type of the artifact, user of the image, or words of the error
	}{
		"alone":               {s.file("a/one"), "a/one"},
		"a chart":             {s.chart(), "application/vnd.cncf.helm.config.v1+json"},
		"an index of a chart": {s.index(s.chart()), "application/vnd.cncf.helm.config.v1+json"},
		"the first for all":   {s.index(s.file("a/one"), s.file("a/two")), "a/one"},
		"the first, untyped":  {s.index(untyped(s.file("a/one")), untyped(s.file("a/two"))), "a/one"},
		"the one for the platform": {
			s.index(s.file("a/any"), on(s.file("a/arm"), "linux", "arm64"), on(s.file("a/amd"), "linux", "amd64")), "a/amd"},
		"untyped, for the platform":    {s.index(on(untyped(s.file("a/amd")), "linux", "amd64")), "a/amd"},
		"for all, beside another's":    {s.index(on(s.file("a/arm"), "linux", "arm64"), s.file("a/any")), "a/any"},
		"only for others":              {s.index(on(s.file("a/arm"), "linux", "arm64")), "it has linux/arm64"},
		"of no platform at all":        {s.index(on(s.file("a/x"), "unknown", "unknown")), "it has none"},
		"an image goes first":          {s.index(s.file("a/one"), mine), "linux/amd64"},
		"an untyped one beside images": {s.index(signature, mine), "linux/amd64"},
		"beside an image for others":   {s.index(s.file("a/sig"), other), "it has linux/s390x"},
		"untyped, beside others' too":  {s.index(signature, other), "it has linux/s390x"},
		"beside nested others'":        {s.index(s.index(other), signature), "it has linux/s390x"},
		"nested":                       {s.index(s.index(s.file("a/one"))), "a/one"},
		"an attestation":               {s.index(s.attestation(nil)), "it has none"},
	} {
		target, err := targetFor("linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		ch := &chooser{store: bare(func(*Config) {}), src: s.blobs, platform: target}
		found, err := ch.choose(t.Context(), c.from)
		var got string
		switch {
		case err != nil:
			got = err.Error()
		case found.doc.Artifact != nil:
			got = found.doc.Artifact.Type
		default:
			got = found.doc.Config.Config.User
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %s; wanted %s", name, got, c.want)
		}
	}
}

// TestArtifactOfAnotherPlatformIsRepaired has an index of artifacts, of which one is pulled that is not the node's.
func TestArtifactOfAnotherPlatformIsRepaired(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	var index ocispec.Index
	index.SchemaVersion, index.MediaType = 2, ocispec.MediaTypeImageIndex
	for _, arch := range []string{"amd64", "arm64", "s390x"} {
		a := modelOf(titled("a", "of "+arch), titled("d/b", "more of "+arch))
		pushArtifact(t, host, "m:"+arch, a)
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, ArtifactType: a.Type, Digest: a.Digest(),
			Size: int64(len(a.Manifest())), Platform: &ocispec.Platform{OS: "linux", Architecture: arch},
		})
	}
	raw, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := fixture.PushManifest(host, "m", "v1", ocispec.MediaTypeImageIndex, raw); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64", "s390x"} {
		s := open(t, t.TempDir())
		img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/m:v1", Platform: "linux/" + arch})
		if err != nil {
			t.Fatal(err)
		}
		for i, path := range []string{"a", "d/b"} {
			spoilFile(t, filepath.Join(s.disk.LayerFS(img.Layers[i]), path))
		}
		found := 0
		err = s.Check(t.Context(), true, func(f Finding) {
			if found++; !f.Repaired {
				t.Errorf("%s: %+v", arch, f)
			}
		})
		a, b := content(t, s, img, "a"), content(t, s, img, "d/b")
		if err != nil || found < 2 || a != "of "+arch || b != "more of "+arch {
			t.Errorf("%s: %d found, %v; it is %q, %q", arch, found, err, a, b)
		}
		sound(t, s)
	}
}
