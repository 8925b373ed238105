package remote

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/limit"
)

const foreignType = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"

// anywhere lets foreign URLs lead to loopback, where the servers of tests are.
func anywhere(netip.Addr) error { return nil }

// TestForeignLayer fetches a layer that no registry has from where its descriptor says, and takes no credentials there.
func TestForeignLayer(t *testing.T) {
	body := noise(t, 5000)
	registry, elsewhere := serve(t, nil), serve(t, nil)
	desc := elsewhere.put(body)
	desc.MediaType = foreignType
	good := elsewhere.URL + "/" + desc.Digest.String() + "?signature=hidden"
	desc.URLs = []string{"ftp://nowhere/x", ":", "http://127.0.0.1:1/gone", good}
	r := newRig(t, Options{clock: quick(), ForeignURLs: true, dialable: anywhere})
	auth := &Auth{Username: "joe", Password: "s3cret", RegistryToken: "token"}
	wants(t, r.repo(t, registry.host+"/app", auth), desc, body)
	for _, q := range elsewhere.requests() {
		if q.Header.Get("Authorization") != "" {
			t.Error("credentials went along")
		}
	}
	gone := ocispec.Descriptor{MediaType: foreignType, Digest: digest.FromString("x"), Size: 1, URLs: desc.URLs[:3]}
	_, err := fetch(t.Context(), r.repo(t, registry.host+"/app", auth), gone)
	fails(t, err, crierrors.ErrRegistryUnavailable, "404", "127.0.0.1:1: ")
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("a query in %v", err)
	}
}

// TestForeignURLsThatAreNotUsed has descriptors that name a place, which is never asked.
func TestForeignURLsThatAreNotUsed(t *testing.T) {
	body := noise(t, 100)
	for name, c := range map[string]struct {
		kind    string
		allowed bool
		words   string
	}{
		"the switch is off": {foreignType, false, "images.foreign_layer_urls"},
		"a usual layer":     {ocispec.MediaTypeImageLayerGzip, true, "404"},
		"a config":          {ocispec.MediaTypeImageConfig, true, "404"},
		"a manifest":        {ocispec.MediaTypeImageManifest, true, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			registry, elsewhere := serve(t, nil), serve(t, nil)
			desc := elsewhere.put(body)
			desc.MediaType, desc.URLs = c.kind, []string{elsewhere.URL + "/" + desc.Digest.String()}
			r := newRig(t, Options{clock: quick(), ForeignURLs: c.allowed, dialable: anywhere})
			_, err := fetch(t.Context(), r.repo(t, registry.host+"/app", nil), desc)
			fails(t, err, errdefs.ErrNotFound, c.words)
			if n := len(elsewhere.requests()); n > 0 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

// TestForeignURLsToTheNodeItself lead to loopback by an address, by a name, and by a redirect from a place that is
// allowed. No connection is made.
func TestForeignURLsToTheNodeItself(t *testing.T) {
	body := noise(t, 100)
	registry, inside := serve(t, nil), serve(t, nil)
	desc := inside.put(body)
	desc.MediaType = foreignType
	path := "/" + desc.Digest.String()
	_, port, _ := strings.Cut(inside.host, ":")
	outside := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, inside.URL+path, http.StatusFound)
		return true
	})
	for name, url := range map[string]string{
		"address": inside.URL + path, "name": "http://localhost:" + port + path, "redirect": outside.URL + path,
		"everywhere": "http://0.0.0.0:" + port + path, "mapped": "http://[::ffff:127.0.0.1]:" + port + path,
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{clock: quick(), ForeignURLs: true}
			if name == "redirect" { // the first connection is to a place that is taken for one elsewhere
				first := true
				o.dialable = func(a netip.Addr) error {
					if first {
						first = false
						return nil
					}
					return forbidden(a)
				}
			}
			desc.URLs = []string{url}
			_, err := fetch(t.Context(), newRig(t, o).repo(t, registry.host+"/app", nil), desc)
			fails(t, err, errdefs.ErrPermissionDenied, "no manifest may lead")
			if n := len(inside.requests()); n > 0 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
	if len(outside.requests()) == 0 {
		t.Error("nobody was redirected")
	}
}

// TestForeignURLsAreFew has a descriptor that names more places than are asked.
func TestForeignURLsAreFew(t *testing.T) {
	registry, elsewhere := serve(t, nil), serve(t, nil)
	desc := ocispec.Descriptor{MediaType: foreignType, Digest: digest.FromString("x"), Size: 1}
	for i := range 1000 {
		desc.URLs = append(desc.URLs, fmt.Sprintf("%s/%d", elsewhere.URL, i))
	}
	r := newRig(t, Options{clock: quick(), ForeignURLs: true, dialable: anywhere})
	_, err := fetch(t.Context(), r.repo(t, registry.host+"/app", nil), desc)
	fails(t, err, errdefs.ErrNotFound)
	if n := len(elsewhere.requests()); int64(n) != limit.ForeignPlaces.Limit {
		t.Errorf("it was asked %d times", n)
	}
}

func TestForbidden(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.8.9.1": true, "::1": true, "0.0.0.0": true, "0.1.2.3": true, "::": true,
		"169.254.169.254": true, "169.254.1.1": true, "fe80::1": true, "fe80::1%eth0": true, "fd00:ec2::254": true,
		"100.100.100.200": true, "168.63.129.16": true, "192.0.0.192": true, "224.0.0.1": true, "ff02::1": true,
		"::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "2002:7f00:1::1": true, "::127.0.0.1": true,
		"192.0.2.1": false, "10.1.2.3": false, "100.100.100.201": false, "2001:db8::1": false, "64:ff9b::c000:201": false,
		"fd00::1": false,
	} {
		if err := forbidden(netip.MustParseAddr(address)); (err != nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}
