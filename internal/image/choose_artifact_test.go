package image

import (
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
