package image

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"berth/test/fixture"
)

// contents is a layer's tar with something of every size.
func contents(t *testing.T) []byte {
	t.Helper()
	entries := append([]entry{aDir(".", 0o755)}, base()...)
	for i := range 40 {
		entries = append(entries, aFile(fmt.Sprint("many/", i), strings.Repeat(fmt.Sprintln("line", i), i*i)))
	}
	return tarOf(t, append(entries, aDir("many", 0o700))...)
}

// zstdLayer packs a tar in one frame.
func zstdLayer(t *testing.T, plain []byte, options ...zstd.EOption) packed {
	t.Helper()
	enc, err := zstd.NewWriter(nil, options...)
	if err != nil {
		t.Fatal(err)
	}
	return packed{enc.EncodeAll(plain, nil), plain, types.OCILayerZStd}
}

// must returns what a generator made.
func must(t *testing.T) func([]byte, error) []byte {
	return func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func as(l packed, kind types.MediaType) packed { l.kind = kind; return l }

// What umoci says of a layer that is not of OCI's first types.
const noSuchType = "blob is not correct mediatype"

func TestComparePackings(t *testing.T) {
	plain := contents(t)
	gzip, made := gzipped(plain), must(t)
	star, starred, err := fixture.EStargz(plain)
	if err != nil {
		t.Fatal(err)
	}
	var cases []comparison
	add := func(name, refuses string, l ...v1.Layer) *comparison {
		cases = append(cases,
			comparison{name: name, image: imageOf(t, l...), refuses: refuses, shows: map[string]string{"d/a": "file a"}})
		return &cases[len(cases)-1]
	}
	add("gzip", "", gzip)
	add("gzip members", "", packed{made(fixture.Members(plain, 5000)), plain, types.OCILayer})
	add("plain", "", packed{plain, plain, types.OCIUncompressedLayer})
	add("zstd", noSuchType, zstdLayer(t, plain))
	add("zstd without checksum, large window", noSuchType,
		zstdLayer(t, plain, zstd.WithEncoderCRC(false), zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false)))
	add("zstd frames", noSuchType, packed{made(fixture.Frames(plain, 7000)), plain, types.OCILayerZStd})
	add("zstd chunked", noSuchType, packed{made(fixture.Chunked(plain)), plain, types.OCILayerZStd})
	add("estargz", "", packed{star, starred, types.OCILayer})
	add("one of each", noSuchType, gzip, zstdLayer(t, tarOf(t, aFile("z", "z"))),
		packed{plain, plain, types.OCIUncompressedLayer})
	add("zstd that is called gzip", "gzip", as(zstdLayer(t, plain), types.OCILayer))
	add("gzip that is called plain", "invalid tar header", as(gzip, types.OCIUncompressedLayer))
	add("foreign", "", as(gzip, types.OCIRestrictedLayer))
	add("foreign plain", "", as(packed{plain, plain, ""}, types.OCIUncompressedRestrictedLayer))
	add("foreign of docker", noSuchType, as(gzip, types.DockerForeignLayer))
	add("docker layer in an OCI image", noSuchType, as(gzip, types.DockerLayer))
	cases = append(cases,
		comparison{
			name:    "docker",
			image:   dockerImage(t, as(gzip, types.DockerLayer), as(packed{plain, plain, ""}, types.DockerUncompressedLayer)),
			refuses: "descriptor does not point to"})
	compareAll(t, cases)
}

// TestCompareEmptyLayers has layers with little or nothing in them.
func TestCompareEmptyLayers(t *testing.T) {
	full := gzipped(contents(t))
	var cases []comparison
	for name, plain := range map[string][]byte{
		"no bytes": {}, "end mark only": fixture.RawTar(), "root only": tarOf(t, aDir(".", 0o700)),
		"no end mark":        contents(t)[:len(contents(t))-1024],
		"after the end mark": append(contents(t), strings.Repeat("rest", 1000)...),
		"padded":             append(contents(t), make([]byte, 1<<20)...),
	} {
		cases = append(cases, // twice, as images often have them
			comparison{name: name + " above", image: imageOf(t, full, gzipped(plain), gzipped(plain))},
			comparison{name: name + " below", image: imageOf(t, gzipped(plain), full)},
			comparison{name: name + " alone", image: imageOf(t, gzipped(plain))})
	}
	compareAll(t, cases)
}

// TestCompareManyLayers stacks more layers than fit a page of mount options.
func TestCompareManyLayers(t *testing.T) {
	var out []v1.Layer
	for i := range 300 {
		entries := []entry{aFile("top", fmt.Sprint(i)), aFile(fmt.Sprint("own", i), "x")}
		if i%3 == 2 {
			entries = append(entries, aFile(fmt.Sprint(".wh.own", i-1), ""))
		}
		out = append(out, gz(t, append([]entry{aDir(".", 0o755)}, entries...)...))
	}
	compareAll(t,
		[]comparison{
			{name: "many layers", image: imageOf(t, out...),
				shows: map[string]string{"top": "file 299", "own0": "file x", "own1": "nothing"}}})
}

// TestCompareIndex finds the image for this machine in indexes, and compares what is found.
func TestCompareIndex(t *testing.T) {
	platform := *fixture.HostPlatform()
	img := stacked(t, base())
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.Variant = platform.Architecture, platform.Variant
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	other := stacked(t, []entry{aFile("other", "")})
	index := func(kind types.MediaType, list ...mutate.IndexAddendum) v1.ImageIndex {
		return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, kind), list...)
	}
	entryFor := func(what mutate.Appendable, p *v1.Platform) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: what, Descriptor: v1.Descriptor{Platform: p}}
	}
	foreign := entryFor(other, &v1.Platform{OS: "linux", Architecture: "s390x"})
	oci := index(types.OCIImageIndex, foreign, entryFor(img, &platform))
	docker := index(types.DockerManifestList, foreign, entryFor(img, &platform))
	nested := index(types.OCIImageIndex, foreign,
		entryFor(index(types.OCIImageIndex, foreign, entryFor(img, &platform)), nil))
	compareAll(t, []comparison{
		{name: "oci index", image: img, pushed: oci}, {name: "docker list", image: img, pushed: docker},
		{name: "nested index", image: img, pushed: nested},
		{name: "index without platforms", image: img, pushed: index(types.OCIImageIndex, entryFor(img, nil))},
	})
}
