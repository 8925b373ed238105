package remote

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// TestTokenServersOnTheNodeItself has a registry name a service of the node as its token server: it would be sent what
// that answers as a token. The node's own address is 127.0.0.2 here, for the registry is to be one elsewhere.
func TestTokenServersOnTheNodeItself(t *testing.T) {
	const secret = "session-of-the-node"
	node := netip.MustParseAddr("127.0.0.2")
	service := serve(t, func(w http.ResponseWriter, _ *http.Request) bool {
		fmt.Fprintf(w, `{"AccessKeyId": "AKIA", "Token": %q}`, secret)
		return true
	})
	port := relay(t, node.String()+":0", service.host)
	away := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://127.0.0.2:"+port+"/credentials", http.StatusFound)
		return true
	})
	o := Options{clock: quick(), dialable: func(a netip.Addr) error {
		if a.Unmap() == node {
			return forbidden(a)
		}
		return nil
	}}
	for name, realm := range map[string]string{
		"an address": "http://127.0.0.2:" + port + "/credentials", "a redirect": away.URL + "/token",
		"mapped": "http://[::ffff:127.0.0.2]:" + port + "/credentials",
	} {
		t.Run(name, func(t *testing.T) {
			registry := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.Header.Get("Authorization"), secret) {
					t.Error("the registry got what the service of the node had answered")
				}
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, realm))
				w.WriteHeader(http.StatusUnauthorized)
				return true
			})
			desc := registry.put(noise(t, 100))
			before := len(service.requests())
			_, err := fetch(t.Context(), newRig(t, o).repo(t, registry.host+"/app", nil), desc)
			fails(t, err, errdefs.ErrPermissionDenied, "no registry elsewhere may lead", registry.host)
			if n := len(service.requests()) - before; n > 0 {
				t.Errorf("the service was asked %d times", n)
			}
		})
	}
	if len(away.requests()) == 0 {
		t.Error("nobody was redirected")
	}
}

// relay passes what comes to an address of the node on to a server, and returns its port.
func relay(t *testing.T, from, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestTokenServersOfTheNode are those of a cache of the node, which calls itself otherwise than its clients do.
func TestTokenServersOfTheNode(t *testing.T) {
	k := giveTokens(t)
	_, port, _ := strings.Cut(k.host, ":")
	registry := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer "+k.good {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://localhost:%s/token",service="x"`, port))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	body := noise(t, 100)
	desc := registry.put(body)
	for name, dialable := range map[string]func(netip.Addr) error{"loopback": nil, "elsewhere": anywhere} {
		wants(t, newRig(t, Options{clock: quick(), dialable: dialable}).repo(t, registry.host+"/app", nil), desc, body)
		if n := len(k.requests()); n == 0 {
			t.Errorf("%s: nobody asked for a token", name)
		}
	}
}

// TestTokenRoutesShareConnections has the routes of a host use its own transports, whose connections end with it.
func TestTokenRoutesShareConnections(t *testing.T) {
	for name, certificates := range map[string][]tls.Certificate{"no certificate": nil, "a certificate": {{}}} {
		c, bare := New(Options{}), &http.Transport{TLSClientConfig: &tls.Config{Certificates: certificates}}
		f := docker.RegistryHost{Client: &http.Client{Transport: bare}, Scheme: "https", Host: "registry.example"}
		h, err := c.host(f, bare, f.Host, identity{})
		if err != nil {
			t.Fatal(err)
		}
		if h.tokens.near != bare || h.away.tokens.near != h.outside.Transport ||
			(h.away.tokens == h.tokens) != (certificates == nil) {
			t.Errorf("%s: other transports are used for tokens: %+v, %+v", name, h.tokens, h.away.tokens)
		}
	}
}

// TestTokenServersBehindAProxy are the proxy's to reach, but for addresses that need no name to be known.
func TestTokenServersBehindAProxy(t *testing.T) {
	c := New(Options{})
	registry := &url.URL{Scheme: "https", Host: "registry.example"}
	bare := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return url.Parse("http://127.0.0.1:3128") }}
	routes := c.tokenRoutes(bare)
	for realm, refused := range map[string]bool{
		"https://auth.example/token": false, "http://169.254.169.254/latest": true, "http://[fd00:ec2::254]/latest": true,
		"http://10.0.0.1/token": false, "https://registry.example:5001/token": false, "http://127.0.0.1/x": true,
	} {
		route, f := routes.to(registry, httptest.NewRequest(http.MethodGet, realm, nil))
		if route != routes.near || (f != nil) != refused {
			t.Errorf("%s: %v, %v", realm, route, f)
		}
	}
	bare.Proxy = nil
	route, f := c.tokenRoutes(bare).to(registry, httptest.NewRequest(http.MethodGet, "http://169.254.169.254/latest", nil))
	if route == nil || route == http.RoundTripper(bare) || f != nil {
		t.Errorf("without a proxy: %v, %v", route, f)
	}
}
