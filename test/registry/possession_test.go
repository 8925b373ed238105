package registry

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// thief is a registry with one manifest, and no blob that it names.
func (r rig) thief(m ocispec.Manifest) (host string) {
	r.Helper()
	m.SchemaVersion, m.MediaType = 2, ocispec.MediaTypeImageManifest
	body, err := json.Marshal(m)
	r.ok(err)
	l, err := r.n.Space.Listen("tcp", "127.0.0.1:0")
	r.ok(err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.Contains(req.URL.Path, "/manifests/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", m.MediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if req.Method == http.MethodGet {
			_, _ = w.Write(body)
		}
	})}
	go func() { _ = srv.Serve(l) }()
	r.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

// TestThief has a tenant whose registry knows what a private image of the node is called, by its id, as the status of
// every container of it says, or by its whole manifest: it gets nothing.
func TestThief(t *testing.T) {
	r := openOwn(t, patient)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true})})
	a := r.app(8*kib, 4*kib).push(p.Target())
	r.ok(r.pull(a.at(p.Addr), right))
	raw, err := a.image.RawManifest()
	r.ok(err)
	var whole ocispec.Manifest
	r.ok(json.Unmarshal(raw, &whole))
	if id := r.image(a.at(p.Addr)).Id; id != whole.Config.Digest.String() {
		r.Fatalf("the image is %s", id)
	}
	known := whole
	known.Layers = nil
	for range whole.Layers {
		known.Layers = append(known.Layers, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayer, Digest: digest.Digest("sha256:" + strings.Repeat("0", 64)), Size: 1,
		})
	}
	for name, m := range map[string]ocispec.Manifest{"the id": known, "the manifest": whole} {
		host := r.thief(m)
		for _, auth := range []*v1.AuthConfig{nil, guess} {
			r.refused(r.pull(host+"/evil/x:latest", auth), codes.NotFound)
		}
		if got := r.image(host + "/evil/x:latest"); got != nil {
			r.Errorf("with %s it has %v", name, got)
		}
	}
	for _, auth := range []*v1.AuthConfig{nil, guess} {
		r.refused(r.pull(a.at(p.Addr), auth), codes.Unauthenticated)
	}
	if got := r.image(a.at(p.Addr)); len(got.RepoTags) != 1 || len(got.RepoDigests) != 1 {
		r.Errorf("the image has the names %v %v", got.RepoTags, got.RepoDigests)
	}
	a.arrived(a.at(p.Addr))
}

// TestAnotherRepositoryProves pulls what the node has from another repository of the same registry: each blob is
// fetched once, and lies there once.
func TestAnotherRepositoryProves(t *testing.T) {
	r := openOwn(t, patient)
	p := r.proxy()
	a := r.app(200*kib, 100*kib).push()
	a.works(a.at(p.Addr))
	first := a.at(p.Addr)
	a.name = "t/" + r.unique() + "/other:v1"
	a.push()
	r.forget(p)
	a.works(a.at(p.Addr))
	for _, l := range a.layers {
		r.await(p, fixture.PartBlob, l.over)
		if asked := l.asked(p); len(asked) != 1 || asked[0].Sent != l.size {
			r.Errorf("asked %v", asked)
		}
	}
	r.forget(p)
	for _, name := range []string{first, a.at(p.Addr)} {
		r.ok(r.pull(name, nil))
	}
	if asked := p.Requests(fixture.PartBlob); len(asked) != 0 {
		r.Errorf("when nothing has changed it asked for %v", asked)
	}
	a.arrived(first)
}
