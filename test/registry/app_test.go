package registry

import (
	"bytes"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	ggcr "github.com/google/go-containerregistry/pkg/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// app is an image that only one test knows, with one file of noise in each layer.
type app struct {
	rig
	name   string // repository and tag
	image  ggcr.Image
	layers []layer
}

// layer is one of an app: what the registry sends for it, and what comes of it.
type layer struct {
	digest string
	size   int64
	file   string
	body   []byte
}

// right opens the registries that ask who comes; guess does not, and shows in no error.
var (
	right = &v1.AuthConfig{Username: fixture.User, Password: fixture.Password}
	guess = &v1.AuthConfig{Username: fixture.User, Password: "wild-guess-4711"}
)

// serial counts layers.
var serial atomic.Int64

// noise gives bytes that no compression makes fewer, the same for the same seed.
func noise(seed string, size int) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed))
	source := rand.NewPCG(h.Sum64(), 0)
	out := make([]byte, 0, size+8)
	for len(out) < size {
		v := source.Uint64()
		out = append(out, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
	}
	return out[:size]
}

// app builds an image with a layer of each size.
func (r rig) app(sizes ...int) *app {
	r.Helper()
	return r.appNamed("t/"+r.unique()+":v1", sizes...)
}

func (r rig) appNamed(name string, sizes ...int) *app {
	r.Helper()
	a := &app{rig: r, name: name}
	recipe := fixture.Recipe{Compression: fixture.LayerPlain}
	for _, size := range sizes {
		file := r.unique() + "-" + strconv.FormatInt(serial.Add(1), 10) // as nothing before it, when tests are run again
		body := noise(file, size)
		a.layers = append(a.layers, layer{file: file, body: body})
		recipe.Layers = append(recipe.Layers, []fixture.File{{Name: file, Body: body}})
	}
	var err error
	a.image, err = recipe.Build()
	r.ok(err)
	layers, err := a.image.Layers()
	r.ok(err)
	for i, l := range layers {
		digest, err := l.Digest()
		r.ok(err)
		a.layers[i].digest = digest.String()
		a.layers[i].size, err = l.Size()
		r.ok(err)
	}
	return a
}

// push sends the image to the registries, to the shared one if there are none.
func (a *app) push(to ...*fixture.Registry) *app {
	a.Helper()
	if len(to) == 0 {
		to = []*fixture.Registry{a.registry()}
	}
	for _, reg := range to {
		_, err := reg.Push(a.name, a.image)
		a.ok(err)
	}
	return a
}

// at is the image's reference at a host.
func (a *app) at(host string) string { return host + "/" + a.name }

// arrived checks what the store holds of the image, byte by byte.
func (a *app) arrived(reference string) {
	a.Helper()
	if a.rig.image(reference) == nil {
		a.Errorf("%s is not in the store", reference)
	}
	for _, l := range a.layers {
		found, _ := filepath.Glob(a.n.Root + "/images/layers/*/fs/" + l.file)
		if len(found) != 1 {
			a.Errorf("layer %s is there %d times", l.digest, len(found))
			continue
		}
		if body, err := os.ReadFile(found[0]); err != nil || !bytes.Equal(body, l.body) {
			a.Errorf("layer %s: other content (%d bytes, wanted %d), %v", l.digest, len(body), len(l.body), err)
		}
	}
}

// absent checks that nothing of the image is in the store.
func (a *app) absent(reference string) {
	a.Helper()
	if got := a.rig.image(reference); got != nil {
		a.Errorf("the store has %v", got)
	}
	for _, l := range a.layers {
		a.eventually("nothing of the layer is left", func() bool {
			found, _ := filepath.Glob(a.n.Root + "/images/*/*/fs/" + l.file)
			return len(found) == 0
		})
	}
}

// works pulls the image, which must arrive whole.
func (a *app) works(reference string) {
	a.Helper()
	a.ok(a.pull(reference, nil))
	a.arrived(reference)
}

// asked are the requests for the content of a layer.
func (l layer) asked(p *fixture.Proxy) []fixture.Request {
	var out []fixture.Request
	for _, r := range p.Requests(fixture.PartBlob) {
		if r.Name == l.digest && r.Method == "GET" {
			out = append(out, r)
		}
	}
	return out
}

// sent is how many bytes of a layer the proxies sent.
func (l layer) sent(proxies ...*fixture.Proxy) (n int64) {
	for _, p := range proxies {
		for _, r := range l.asked(p) {
			n += r.Sent
		}
	}
	return n
}

// on makes a fault one of the layer's blob.
func (l layer) on(f fixture.Fault) fixture.Fault {
	f.Part, f.Digest = fixture.PartBlob, l.digest
	return f
}
