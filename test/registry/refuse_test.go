package registry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

// serve makes a proxy answer any manifest request with a document that docker-registry itself would not take.
func serve(p *fixture.Proxy, mediaType, body string) {
	answer := fixture.Fault{Part: fixture.PartManifest, Status: 200, Body: body, Header: map[string]string{
		"Content-Type": mediaType, "Content-Length": strconv.Itoa(len(body)),
		"Docker-Content-Digest": fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(body))),
	}}
	p.On(answer)
}

// TestWhatIsNoImage wants a clear refusal of what a registry may hold and a node cannot run.
func TestWhatIsNoImage(t *testing.T) {
	r := open(t)
	descriptor := func(mediaType string) string {
		return fmt.Sprintf(
			`{"mediaType":%q,"size":2,"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}`,
			mediaType)
	}
	const oci = string(types.OCIManifestSchema1)
	manifest := func(config, layer string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]}`, oci, descriptor(config),
			descriptor(layer))
	}
	for name, c := range map[string]struct {
		mediaType, body string
		code            codes.Code
		words           []string
	}{
		"schema-1": {string(types.DockerManifestSchema1), `{"schemaVersion":1,"name":"x","tag":"y","fsLayers":[]}`,
			codes.FailedPrecondition, []string{"schema 1"}},
		"encrypted": {oci, manifest(string(types.OCIConfigJSON), string(types.OCILayer)+"+encrypted"),
			codes.FailedPrecondition, []string{"encrypted"}},
		"odd-layer": {oci, manifest(string(types.OCIConfigJSON), "text/plain"), codes.FailedPrecondition,
			[]string{"text/plain"}},
		"neither": {oci, `{"schemaVersion":2}`, codes.FailedPrecondition, []string{"neither"}},
		"both": {oci, `{"schemaVersion":2,"config":` + descriptor(string(types.OCIConfigJSON)) +
			`,"layers":[],"manifests":[]}`,
			codes.DataLoss, []string{"both"}},
		"no-json": {oci, `{"schemaVersion":`, codes.DataLoss, nil},
		"empty-list": {string(types.OCIImageIndex), `{"schemaVersion":2,"manifests":[]}`, codes.NotFound,
			[]string{"platform"}},
	} {
		r.beside(name, func(r rig) {
			p := r.proxy()
			serve(p, c.mediaType, c.body)
			reference := p.Ref("t/" + r.unique() + ":v1")
			r.refused(r.pull(reference, nil), c.code, append(c.words, reference)...)
			if got := r.image(reference); got != nil {
				r.Errorf("kept %v", got)
			}
		})
	}
}

// TestArtifactInTheRegistry pushes an OCI 1.1 artifact to docker-registry itself. It is pulled, listed and removed as
// an image is; what a blob of it is, is proven as for one.
func TestArtifactInTheRegistry(t *testing.T) {
	r := open(t)
	p := r.proxy()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		"application/vnd.dev.cosign.artifact.sig.v1+json")
	img, err := mutate.AppendLayers(img,
		static.NewLayer([]byte("signature"), "application/vnd.dev.cosign.simplesigning.v1+json"))
	r.ok(err)
	name := "t/" + r.unique() + ":sig"
	byDigest, err := r.registry().Push(name, img)
	r.ok(err)
	r.ok(r.pull(p.Ref(name), nil))
	got := r.image(p.Ref(name))
	if _, digest, _ := strings.Cut(byDigest, "@"); got == nil || got.Id != digest || got.Size < 9 {
		r.Errorf("%s is there as %v", byDigest, got)
	}
	r.remove(p.Ref(name))
	if got := r.image(p.Ref(name)); got != nil {
		r.Errorf("after its removal it is there as %v", got)
	}
}

// TestBounds refuses what is larger than the configuration allows, and says what the bound is.
func TestBounds(t *testing.T) {
	r := openOwn(t, impatient+"max_layers = 3\nmax_manifest_bytes = 20000\nmax_config_bytes = 30000\nmax_layer_bytes = "+
		"1000000\nmax_layer_entries = 100\n")
	many := make([]fixture.File, 200)
	for i := range many {
		many[i] = fixture.File{Name: strconv.Itoa(i)}
	}
	big := strings.Repeat("x", 40000)
	for name, c := range map[string]struct {
		recipe fixture.Recipe
		words  []string
	}{
		"bomb": {fixture.Recipe{Layers: [][]fixture.File{{{Name: "zero", Body: make([]byte, 64*mib)}}}},
			[]string{"1000000"}},
		"zstd-bomb": {
			fixture.Recipe{Layers: [][]fixture.File{{{Name: "zero", Body: make([]byte, 64*mib)}}},
				Compression: fixture.LayerZstd}, []string{"1000000"}},
		"entries": {fixture.Recipe{Layers: [][]fixture.File{many}}, []string{"100"}},
		"layers": {fixture.Recipe{Layers: [][]fixture.File{{{Name: "1"}}, {{Name: "2"}}, {{Name: "3"}}, {{Name: "4"}}}},
			[]string{"layers of an image: 4", "the 3 allowed", "images.max_layers"}},
		"config": {fixture.Recipe{Config: ggcr.Config{Labels: map[string]string{"big": big}}}, []string{"30000"}},
	} {
		r.sub(name, func(r rig) {
			p := r.proxy()
			img, err := c.recipe.Build()
			r.ok(err)
			tag := "t/" + r.unique() + ":v1"
			_, err = r.registry().Push(tag, img)
			r.ok(err)
			r.refused(r.pull(p.Ref(tag), nil), codes.ResourceExhausted, append(c.words, p.Ref(tag))...)
			r.nothingUnderWay()
		})
	}
	r.sub("manifest", func(r rig) {
		p := r.proxy()
		body, err := json.Marshal(
			map[string]any{"schemaVersion": 2, "manifests": []any{}, "annotations": map[string]string{"big": big}})
		r.ok(err)
		serve(p, string(types.OCIImageIndex), string(body))
		r.refused(r.pull(p.Ref("t/"+r.unique()+":v1"), nil), codes.ResourceExhausted, "20000")
	})
	r.sub("endless-manifest", func(r rig) { // its length is not told beforehand
		p := r.proxy()
		p.On(fixture.Fault{Part: fixture.PartManifest, Method: "HEAD", Status: 405},
			fixture.Fault{Part: fixture.PartManifest, Endless: true})
		r.refused(r.pull(p.Ref("t/"+r.unique()+":v1"), nil), codes.ResourceExhausted, "20000")
	})
}
