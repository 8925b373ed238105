package document

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// TestOddDocuments are not malformed.
func TestOddDocuments(t *testing.T) {
	for _, text := range []string{
		`{}`, ` {"a":{"b":1},"c":{"b":1}} `, `{"config":{"Labels":{"name":"1","Name":"2"}}}`,
		`{"annotations":{"a":"","A":""}}`, `{"a":[{"b":1},{"b":1}],"b":[1,"x",null,true,[],{}]}`, `{"a":{},"b":[]}`,
		`{"":1," ":2}`, `{"history":[{"a":1,"A":2}]}`,
	} {
		if err := unambiguous([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestAmbiguousDocuments could be read in two ways.
func TestAmbiguousDocuments(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `{"a":1,"a":2}`, `{"layers":[],"Layers":[]}`, `{"config":{"Env":[],"env":[]}}`, `{"a":{"b":1,"b":2}}`,
	} {
		if err := unambiguous([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	var over *limit.Error
	err := unambiguousOf([]byte(`{"a":[1,2,3]}`), limit.DocumentValues.At(4))
	if !errors.As(err, &over) {
		t.Errorf("of too many values: %v", err)
	}
}

// TestProve takes a document that is what was promised, and no other.
func TestProve(t *testing.T) {
	raw := []byte(`{"a":1}`)
	desc := ocispec.Descriptor{Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	if err := Prove(raw, desc, "manifest"); err != nil {
		t.Error(err)
	}
	for _, other := range []string{`"a":1}`, `{"a":1} `, `{"a":2}`} {
		if err := Prove([]byte(other), desc, "manifest"); !fail.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("%s: %v", other, err)
		}
	}
	for _, bad := range []ocispec.Descriptor{{Digest: "sha256:x"}, {Digest: desc.Digest, Size: -1}} {
		if err := CheckDescriptor(bad); !fail.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestChainIDs names a layer by itself where nothing is below it, and else by all below it.
func TestChainIDs(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	got := ChainIDs([]digest.Digest{a, b, a})
	second := digest.FromString(a.String() + " " + b.String())
	third := digest.FromString(second.String() + " " + a.String())
	if len(got) != 3 || got[0] != a || got[1] != second || got[2] != third {
		t.Errorf("%v", got)
	}
}

// TestManifestAndConfigAgree wants a diff id for each layer, and limits for both.
func TestManifestAndConfigAgree(t *testing.T) {
	one := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("l"), Size: 60}
	img := Image{Manifest: ocispec.Manifest{
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig}, Layers: []ocispec.Descriptor{one, one},
	}}
	limits := Limits{Layers: 2, Bytes: 120}
	if err := CheckManifest(&img.Manifest, limits); err != nil {
		t.Error(err)
	}
	for text, less := range map[string]Limits{"layers": {Layers: 1, Bytes: 120}, "bytes": {Layers: 2, Bytes: 119}} {
		if err := CheckManifest(&img.Manifest, less); !fail.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("with fewer %s: %v", text, err)
		}
	}
	if err := img.Agree(); err == nil || !strings.Contains(err.Error(), "2 layers and the config 0 diff ids") {
		t.Errorf("without diff ids: %v", err)
	}
	img.Config.RootFS.DiffIDs = []digest.Digest{one.Digest, "sha256:x"}
	if err := img.Agree(); err == nil {
		t.Error("with a diff id that is none")
	}
	img.Config.RootFS.DiffIDs[1] = one.Digest
	if err := img.Agree(); err != nil {
		t.Error(err)
	}
}
