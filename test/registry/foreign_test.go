package registry

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

// unpushed is a layer that a push passes over, because of its type.
type unpushed struct{ ggcr.Layer }

func (unpushed) MediaType() (types.MediaType, error) { return types.DockerForeignLayer, nil }

// foreign adds to the image a layer that no registry has, and that its manifest says is at these places. It returns the
// layer's content.
func (a *app) foreign(urls ...string) []byte {
	a.Helper()
	other := a.appNamed("t/"+a.unique()+"-foreign:v1", 9*kib)
	layers, err := other.image.Layers()
	a.ok(err)
	content, err := layers[0].Compressed()
	a.ok(err)
	defer content.Close()
	body, err := io.ReadAll(content)
	a.ok(err)
	for i, url := range urls {
		urls[i] = url + "/" + other.layers[0].digest
	}
	a.image, err = mutate.Append(a.image, mutate.Addendum{
		Layer: unpushed{layers[0]}, URLs: urls, MediaType: types.DockerForeignLayer,
	})
	a.ok(err)
	a.layers = append(a.layers, other.layers...)
	return body
}

// TestForeignLayers has a layer that is nowhere but where the manifest says: it is fetched from there where the
// configuration allows it, and where that is not the node itself.
func TestForeignLayers(t *testing.T) {
	r := openOwn(t, impatient+"foreign_layer_urls = true\n")
	const outside = "192.0.2.7" // is for documents: no machine of a network has it
	r.ok(r.n.Space.Run(exec.Command("ip", "address", "add", outside+"/32", "dev", "lo")))
	registry, far, near := r.proxy(), r.proxy(fixture.ProxyOptions{Address: outside + ":0"}), r.proxy()
	serves := func(p *fixture.Proxy, body []byte) {
		p.On(fixture.Fault{Status: 200, Body: string(bytes.Clone(body))})
	}
	r.sub("outside", func(r rig) {
		a := r.app(8 * kib)
		serves(far, a.foreign("http://127.0.0.1:1", far.URL()))
		a.push().works(a.at(registry.Addr))
		if asked := far.Requests(""); len(asked) != 1 {
			r.Errorf("asked %v", asked)
		}
	})
	for name, url := range map[string]string{
		"loopback": near.URL(), "name": strings.Replace(near.URL(), "127.0.0.1", "localhost", 1),
		"metadata": "http://169.254.169.254/latest/meta-data",
	} {
		r.sub(name, func(r rig) {
			a := r.app(8 * kib)
			serves(near, a.foreign(url))
			reference := a.push().at(registry.Addr)
			r.refused(r.pull(reference, nil), codes.PermissionDenied, "no manifest may lead", reference)
			a.layers = a.layers[1:] // its own one may have come before the refusal, and stays for the next try
			a.absent(reference)
		})
	}
	if asked := near.Requests(""); len(asked) != 0 {
		r.Errorf("the node itself was asked %v", asked)
	}
}

// TestForeignLayersUnasked has the same layer, and a node that does not look for it.
func TestForeignLayersUnasked(t *testing.T) {
	r := open(t)
	p, place := r.proxy(), r.proxy()
	a := r.app(8 * kib)
	a.foreign(place.URL())
	reference := a.push().at(p.Addr)
	r.refused(r.pull(reference, nil), codes.NotFound, place.Addr, "images.foreign_layer_urls = true")
	if asked := place.Requests(""); len(asked) != 0 {
		r.Errorf("asked %v", asked)
	}
}
