package image

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// testSource is a source to which a test adds documents of its own making.
type testSource struct {
	testing.TB
	blobs
}

func newTestSource(t testing.TB) testSource { return testSource{t, blobs{}} }

// put adds a document, by the algorithm given.
func (s testSource) put(mediaType string, doc any, algorithm ...digest.Algorithm) ocispec.Descriptor {
	raw, ok := doc.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(doc); err != nil {
			s.Fatal(err)
		}
	}
	d := digest.FromBytes(raw)
	for _, a := range algorithm {
		d = a.FromBytes(raw)
	}
	s.blobs[d] = raw
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(raw))}
}

// image adds an image without layers whose config names the platform, and whose user tells it from others.
func (s testSource) image(platform, label string) ocispec.Descriptor {
	s.Helper()
	var p ocispec.Platform
	if platform != "" {
		var err error
		if p, err = platforms.Parse(platform); err != nil {
			s.Fatal(err)
		}
	}
	config := s.put(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, Config: ocispec.ImageConfig{User: label}})
	return s.put(ocispec.MediaTypeImageManifest,
		ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{}})
}

// entry is the descriptor of an image in an index, which says the platform.
func (s testSource) entry(platform string) ocispec.Descriptor {
	d := s.image(platform, platform)
	p := platforms.MustParse(platform)
	d.Platform = &p
	return d
}

func (s testSource) index(entries ...ocispec.Descriptor) ocispec.Descriptor {
	return s.put(ocispec.MediaTypeImageIndex, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: entries})
}

// choose says which image is chosen for a platform, by its user.
func (s testSource) choose(platform string, from ocispec.Descriptor) (string, error) {
	s.Helper()
	target, err := targetFor(platform)
	if err != nil {
		s.Fatal(err)
	}
	c := &chooser{store: bare(func(*Config) {}), src: s.blobs, platform: target}
	found, err := c.choose(s.Context(), from)
	if err != nil {
		return "", failed("pull", err)
	}
	return found.doc.Config.Config.User, nil
}

// refuses wants a document to be refused.
func (s testSource) refuses(what string, from ocispec.Descriptor, kind error, words string) {
	s.Helper()
	got, err := s.choose("linux/amd64", from)
	if err == nil || kindOf(err) != kind || !strings.Contains(err.Error(), words) {
		s.Errorf("%s: %q, kind %v, %v; want kind %v with %q", what, got, kindOf(err), err, kind, words)
	}
}

func TestVariants(t *testing.T) {
	for _, c := range []struct {
		offers, machine, want string
	}{
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7", "linux/arm/v7", "linux/arm/v7"},
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7", "linux/arm", "linux/arm/v7"},
		{"linux/arm/v7 linux/arm/v6 linux/arm/v5", "linux/arm/v6", "linux/arm/v6"},
		{"linux/arm/v7 linux/arm/v5", "linux/arm/v6", "linux/arm/v5"},
		{"linux/arm/v7 linux/arm/v6", "linux/arm/v5", ""},
		{"linux/arm/v8 linux/arm/v7", "linux/arm/v8", "linux/arm/v8"},
		{"linux/arm/v7 linux/arm64", "linux/arm64", "linux/arm64"},
		{"linux/arm/v7 linux/arm/v6", "linux/arm64", "linux/arm/v7"},
		{"linux/arm64/v8 linux/arm64/v9", "linux/arm64/v8", "linux/arm64/v8"},
		{"linux/arm64/v9", "linux/arm64/v8", ""},
		{"linux/amd64 linux/amd64/v2 linux/amd64/v3", "linux/amd64", "linux/amd64"},
		{"linux/amd64 linux/amd64/v2 linux/amd64/v3", "linux/amd64/v2", "linux/amd64/v2"},
		{"linux/amd64/v3 linux/amd64/v2 linux/amd64", "linux/amd64/v4", "linux/amd64/v3"},
		{"linux/amd64/v3 linux/amd64", "linux/amd64/v2", "linux/amd64"},
		{"linux/amd64/v3 linux/arm64", "linux/amd64", ""},
		{"linux/amd64/v3 linux/arm64", "linux/amd64/v2", ""},
		{"linux/386 windows/amd64", "linux/amd64", "linux/386"},
		{"windows/amd64 darwin/amd64", "linux/amd64", ""},
		{"linux/s390x linux/ppc64le linux/riscv64", "linux/riscv64", "linux/riscv64"},
	} {
		s := newTestSource(t)
		var entries []ocispec.Descriptor
		for _, p := range strings.Fields(c.offers) {
			entries = append(entries, s.entry(p))
		}
		got, err := s.choose(c.machine, s.index(entries...))
		if c.want == "" {
			want := "the index has no image for the platform " + c.machine + "; it has "
			if kindOf(err) != errdefs.ErrNotFound || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
				entries[0].Platform.Architecture) {
				t.Errorf("%s for %s: %q, %v; wanted %q", c.offers, c.machine, got, err, want)
			}
			continue
		}
		if err != nil || platforms.Format(platforms.MustParse(got)) != platforms.Format(platforms.MustParse(c.want)) {
			t.Errorf("%s for %s: %s, %v; wanted %s", c.offers, c.machine, got, err, c.want)
		}
	}
}

func TestNestedAndUnnamed(t *testing.T) {
	s := newTestSource(t)
	mine, other := s.image("linux/amd64", "mine"), s.image("linux/s390x", "other")
	deep := mine
	for range maxIndexDepth {
		deep = s.index(other, deep)
	}
	named := s.index(s.entry("linux/amd64"))
	named.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	empty := mine
	empty.Platform = &ocispec.Platform{}
	for name, c := range map[string]struct {
		from ocispec.Descriptor
		want string
	}{
		"alone":                       {mine, "mine"},
		"alone, of another platform":  {other, "other"},
		"without platform entries":    {s.index(other, mine), "mine"},
		"with an empty platform":      {s.index(other, empty), "mine"},
		"a named one is better":       {s.index(mine, s.entry("linux/amd64")), "linux/amd64"},
		"nested":                      {s.index(s.entry("linux/arm64"), s.index(other, mine)), "mine"},
		"nested, with a platform":     {s.index(s.entry("linux/arm64"), named), "linux/amd64"},
		"nested as deep as can be":    {deep, "mine"},
		"of a config without a word":  {s.image("", "silent"), "silent"},
		"an artifact lies beside it":  {s.index(s.chart(), mine), "mine"},
		"an attestation beside it":    {s.index(s.attestation(nil), s.entry("linux/amd64")), "linux/amd64"},
		"one that names the platform": {s.index(s.attestation(named.Platform), s.entry("linux/amd64")), "linux/amd64"},
	} {
		if got, err := s.choose("linux/amd64", c.from); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; wanted %q", name, got, err, c.want)
		}
	}
	tooDeep := mine
	for range maxIndexDepth + 1 {
		tooDeep = s.index(tooDeep)
	}
	s.refuses("nested too deep", tooDeep, errdefs.ErrFailedPrecondition, "nested more than 4 deep")
	s.refuses("an empty index", s.index(), errdefs.ErrNotFound, "it has none")
	s.refuses("only others", s.index(other), errdefs.ErrNotFound, "linux/amd64; it has linux/s390x")
	s.refuses("attestations alone", s.index(s.attestation(nil)), errdefs.ErrNotFound, "it has none")
}

// TestIndexOfIndexes has one that would lead to more documents than anybody should fetch.
func TestIndexOfIndexes(t *testing.T) {
	s := newTestSource(t)
	level := []ocispec.Descriptor{s.image("linux/s390x", "other")}
	for range maxIndexDepth {
		var next []ocispec.Descriptor
		for i := range maxUnnamed {
			d := s.put(ocispec.MediaTypeImageIndex,
				map[string]any{"schemaVersion": 2, "manifests": level, "annotations": map[string]string{"n": fmt.Sprint(i)}})
			next = append(next, d)
		}
		level = next
	}
	s.refuses("a tree", s.index(level...), errdefs.ErrResourceExhausted, "more than the 64 allowed")
}

// TestLongErrors has an index and an artifact whose errors would not fit a gRPC status.
func TestLongErrors(t *testing.T) {
	t.Parallel()
	s := newTestSource(t)
	var many []ocispec.Descriptor
	for i := range 10000 {
		d := s.image("linux/s390x", "other")
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: fmt.Sprintf("arch%d", i)}
		many = append(many, d)
	}
	s.refuses("many platforms", s.index(many...), errdefs.ErrNotFound, "and 9984 more")
	long := s.put(ocispec.MediaTypeImageManifest,
		ocispec.Manifest{Config: ocispec.Descriptor{MediaType: strings.Repeat("x", 1<<20)}})
	s.refuses("a long type", long, errdefs.ErrFailedPrecondition, "it is an artifact of type")
	_, err := s.choose("linux/amd64", long)
	if n := len(fmt.Sprint(err)); n > 8<<10 {
		t.Errorf("the error has %d bytes", n)
	}
}

func (s testSource) manifest(change func(*ocispec.Manifest)) ocispec.Descriptor {
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest,
		Config: s.put(ocispec.MediaTypeImageConfig, ocispec.Image{})}
	m.Layers = []ocispec.Descriptor{}
	change(&m)
	return s.put(ocispec.MediaTypeImageManifest, m)
}

func (s testSource) chart() ocispec.Descriptor {
	return s.manifest(func(m *ocispec.Manifest) {
		m.Config = s.put("application/vnd.cncf.helm.config.v1+json", []byte("{}"))
		m.Layers = append(m.Layers, s.put("application/vnd.cncf.helm.chart.content.v1.tar+gzip", []byte("x")))
	})
}

// attestation is what BuildKit puts beside an image in an index.
func (s testSource) attestation(p *ocispec.Platform) ocispec.Descriptor {
	d := s.manifest(func(m *ocispec.Manifest) {
		m.Layers = append(m.Layers, s.put("application/vnd.in-toto+json", []byte("{}")))
	})
	if d.Platform = p; p == nil {
		d.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
	}
	d.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
	return d
}

// TestWhatIsRefused has what is neither an image nor an artifact that could be mounted.
func TestWhatIsRefused(t *testing.T) {
	s := newTestSource(t)
	empty := s.put(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	layer := func(mediaType string) func(*ocispec.Manifest) {
		return func(m *ocispec.Manifest) { m.Layers = append(m.Layers, s.put(mediaType, []byte("{}"))) }
	}
	for _, c := range []struct {
		name, words string
		from        ocispec.Descriptor
	}{
		{"OCI 1.1", `artifact of type "application/vnd.example.sbom"`, s.manifest(func(m *ocispec.Manifest) {
			m.ArtifactType, m.Config = "application/vnd.example.sbom", empty
		})},
		{"an empty config", `artifact of type "application/vnd.oci.empty.v1+json"`, s.manifest(func(m *ocispec.Manifest) {
			m.Config = empty
		})},
		{"a signature", `is of type "application/vnd.dev.cosign.simplesigning.v1+json"`,
			s.manifest(layer("application/vnd.dev.cosign.simplesigning.v1+json"))},
		{"an attestation", `is of type "application/vnd.in-toto+json"`, s.attestation(nil)},
		{"a config of no type", "its config has no media type", s.manifest(func(m *ocispec.Manifest) {
			m.Config.MediaType = ""
		})},
		{"an artifact manifest", "neither an image nor an index", s.put("application/vnd.oci.artifact.manifest.v1+json",
			[]byte(`{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","artifactType":"x","blobs":[]}`))},
		{"schema 1", "schema 1",
			s.put("application/vnd.docker.distribution.manifest.v1+json",
				[]byte(`{"schemaVersion":1,"fsLayers":[],"history":[]}`))},
		{"an encrypted layer", "cannot be unpacked here",
			s.manifest(layer("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"))},
		{"an EROFS layer", "cannot be unpacked here", s.manifest(layer("application/vnd.oci.image.layer.v1.erofs"))},
	} {
		s.refuses(c.name, c.from, errdefs.ErrFailedPrecondition, c.words)
	}
}

// TestDisagreement has manifests and configs that do not fit each other, or that lie.
func TestDisagreement(t *testing.T) {
	s := newTestSource(t)
	layer := s.put(ocispec.MediaTypeImageLayer, []byte("x"))
	with := func(config any, layers ...ocispec.Descriptor) ocispec.Descriptor {
		return s.manifest(func(m *ocispec.Manifest) {
			m.Config, m.Layers = s.put(ocispec.MediaTypeImageConfig, config), layers
		})
	}
	diffs := func(d ...digest.Digest) ocispec.Image { return ocispec.Image{RootFS: ocispec.RootFS{DiffIDs: d}} }
	sized := func(n int64) ocispec.Descriptor { l := layer; l.Size = n; return l }
	named := func(d digest.Digest) ocispec.Descriptor { l := layer; l.Digest = d; return l }
	short, long := s.image("linux/amd64", "short"), s.image("linux/amd64", "long")
	short.Size--
	long.Size++
	for _, c := range []struct {
		name, words string
		kind        error
		from        ocispec.Descriptor
	}{
		{"fewer diff ids", "1 layers and the config 0 diff ids", errdefs.ErrDataLoss, with(diffs(), layer)},
		{"more diff ids", "0 layers and the config 1 diff ids", errdefs.ErrDataLoss, with(diffs(layer.Digest))},
		{"a diff id of no algorithm", `diff id "md5:`, errdefs.ErrDataLoss,
			with(diffs(digest.Digest("md5:"+strings.Repeat("0", 32))), layer)},
		{"a diff id that is none", `diff id "../../x"`, errdefs.ErrDataLoss, with(diffs("../../x"), layer)},
		{"a layer of no algorithm", `digest "md5:`, errdefs.ErrDataLoss,
			with(diffs(layer.Digest), named(digest.Digest("md5:"+strings.Repeat("0", 32))))},
		{"a layer that is a path", `digest "sha256:../../`, errdefs.ErrDataLoss,
			with(diffs(layer.Digest), named(digest.Digest("sha256:../../"+strings.Repeat("a", 58))))},
		{"capitals in a digest", `digest "sha256:AAAA`, errdefs.ErrDataLoss,
			with(diffs(layer.Digest), named(digest.Digest("sha256:"+strings.Repeat("A", 64))))},
		{"a layer of less than nothing", "has the size -1", errdefs.ErrDataLoss, with(diffs(layer.Digest), sized(-1))},
		{"layers larger than any disk", "add up to more", errdefs.ErrDataLoss,
			with(diffs(layer.Digest, layer.Digest), sized(1<<62), sized(1<<62))},
		{"a manifest that is longer", "bytes, not the", errdefs.ErrDataLoss, short},
		{"a manifest that is shorter", "bytes, not the", errdefs.ErrDataLoss, long},
		{"a config that is null", "no JSON object", errdefs.ErrDataLoss, with([]byte("null"))},
		{"a config that is a list", "cannot unmarshal array", errdefs.ErrDataLoss, with([]byte("[]"))},
		{"an index that says it is an image", "both an image and an index", errdefs.ErrDataLoss,
			s.put("", []byte(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","manifests":[]}`))},
		{"an image that says it is an index", "both an image and an index", errdefs.ErrDataLoss,
			s.put("", []byte(`{"mediaType":"application/vnd.oci.image.index.v1+json","layers":[]}`))},
		{"both", "both an image and an index", errdefs.ErrDataLoss, s.put("", []byte(`{"layers":[],"manifests":[]}`))},
		{"neither", "neither an image nor an index", errdefs.ErrFailedPrecondition, s.put("", []byte(`{}`))},
	} {
		s.refuses(c.name, c.from, c.kind, c.words)
	}
}

// TestPlatformNames has platforms that somebody asks for by hand.
func TestPlatformNames(t *testing.T) {
	for _, name := range []string{"linux/amd64/v999999999", "linux/arm/v123456789",
		"linux/arm64/" + strings.Repeat("v", 40), "a/b/c/d/e", "\x00"} {
		if _, err := targetFor(name); kindOf(failed("", err)) != errdefs.ErrInvalidArgument {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "linux", "arm64", "linux/arm/v6", "linux/arm64/v8.2", "windows(10.0.17763)/amd64"} {
		if target, err := targetFor(name); err != nil || target.name == "" {
			t.Errorf("%q: %q, %v", name, target.name, err)
		}
	}
}

func TestAMD64Variant(t *testing.T) {
	v2 := "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
	v3 := v2 + " abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
	for flags, want := range map[string]string{
		"": "", "fpu sse sse2": "", v2: "v2", strings.Replace(v3, "movbe", "", 1): "v2", v3: "v3",
		strings.Replace(v3, "cx16", "", 1):                  "",
		v3 + " avx512f avx512bw avx512cd avx512dq avx512vl": "v4", v3 + " avx512f": "v3",
	} {
		info := "processor\t: 0\nflags\t\t: " + flags + "\nbugs\t\t:\nprocessor\t: 1\nflags\t\t: other\n"
		if got := amd64Variant(processorFlags(strings.NewReader(info))); got != want {
			t.Errorf("%q: %q, wanted %q", flags, got, want)
		}
	}
	if amd64Variant(processorFlags(strings.NewReader("nothing"))) != "" {
		t.Error("a processor without flags")
	}
}
