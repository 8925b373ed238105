package registry

import (
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

// outlet is the proxy of a site: the only way from the node to the world, and the only one who knows names there.
type outlet struct {
	Addr  string
	mu    sync.Mutex        // guards what follows
	hosts map[string]string // host (and port) to the address that it has
	asked []string          // methods and hosts
	auth  map[string]bool   // hosts that were sent an Authorization
}

func (r rig) outlet() *outlet {
	r.Helper()
	l, err := r.n.Space.Listen("tcp", "127.0.0.1:0")
	r.ok(err)
	o := &outlet{Addr: l.Addr().String(), hosts: map[string]string{}, auth: map[string]bool{}}
	server := &http.Server{Handler: o, ReadHeaderTimeout: timeout}
	go func() { _ = server.Serve(l) }()
	r.Cleanup(func() { _ = server.Close() })
	return o
}

// name makes a host known.
func (o *outlet) name(host, address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hosts[host] = address
}

// note records a request, and finds the address of its host.
func (o *outlet) note(r *http.Request) (address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, r.Method+" "+r.Host)
	if r.Header.Get("Authorization") != "" {
		o.auth[r.Host] = true
	}
	return o.hosts[r.Host]
}

// saw gives what was asked so far.
func (o *outlet) saw() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

// trusted says whether a host was sent credentials.
func (o *outlet) trusted(host string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.auth[host]
}

// ServeHTTP passes requests on: whole ones for http, and what is in a tunnel for https.
func (o *outlet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address := o.note(r)
	if address == "" {
		http.Error(w, "no such host: "+r.Host, http.StatusBadGateway)
		return
	}
	if r.Method == http.MethodConnect {
		tunnel(w, address)
		return
	}
	out := r.Clone(r.Context())
	out.RequestURI, out.URL.Host = "", address
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

func tunnel(w http.ResponseWriter, address string) {
	to, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	w.WriteHeader(http.StatusOK)
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(from, to)
}

// outside is a proxy that only the outlet reaches: it listens on the machine, not in the node's space.
func (r rig) outside(o fixture.ProxyOptions) *fixture.Proxy {
	r.Helper()
	if o.Target == nil {
		o.Target = r.registry()
	}
	p, err := fixture.StartProxy(o)
	r.ok(err)
	r.Cleanup(func() { _ = p.Close() })
	return p
}

// TestProxyFromEnvironment starts the daemon as a site with one way out does.
func TestProxyFromEnvironment(t *testing.T) {
	r := openOwn(t, impatient)
	out, inside := r.outlet(), r.proxy()
	r.ok(r.n.Stop())
	r.ok(r.n.Start("HTTP_PROXY=http://"+out.Addr, "HTTPS_PROXY=http://"+out.Addr, "NO_PROXY=near.test,127.0.0.0/8"))

	r.sub("http", func(r rig) {
		p := r.outside(fixture.ProxyOptions{})
		out.name("plain.test", p.Addr)
		r.hosts("plain.test", "server = \"http://plain.test\"\n")
		a := r.app(8 * kib).push()
		a.works(a.at("plain.test"))
		if asked := out.saw(); !slices.Contains(asked, "GET plain.test") {
			r.Errorf("the site's proxy was asked %v", asked)
		}
	})
	r.sub("https", func(r rig) {
		p := r.outside(fixture.ProxyOptions{TLS: true})
		out.name("localhost.test:443", p.Addr)
		r.hosts("localhost.test", mirror("https://localhost.test", `skip_verify = true`))
		a := r.app(8 * kib).push()
		a.works(a.at("localhost.test"))
		if asked := out.saw(); !slices.Contains(asked, "CONNECT localhost.test:443") {
			r.Errorf("the site's proxy was asked %v", asked)
		}
	})
	r.sub("no-proxy", func(r rig) {
		before := len(out.saw())
		a := r.app(8 * kib).push()
		a.works(a.at(inside.Addr))
		if asked := out.saw(); len(asked) != before {
			r.Errorf("the site's proxy was asked %v", asked[before:])
		}
	})
	// Go's own client takes credentials along to a subdomain. Names are needed to try; here somebody knows them.
	r.sub("subdomain", func(r rig) {
		locked := r.ownRegistry(fixture.RegistryOptions{Auth: true})
		p, storage := r.outside(fixture.ProxyOptions{Target: locked}), r.outside(fixture.ProxyOptions{})
		out.name("locked.test", p.Addr)
		out.name("blobs.locked.test", storage.Addr)
		p.On(fixture.Fault{Part: fixture.PartBlob, Redirect: func(q *http.Request) string {
			return "http://blobs.locked.test" + q.URL.Path
		}})
		r.hosts("locked.test", "server = \"http://locked.test\"\n")
		a := r.app(8*kib).push(locked, r.registry())
		r.ok(r.pull(a.at("locked.test"), right))
		a.arrived(a.at("locked.test"))
		if !out.trusted("locked.test") || out.trusted("blobs.locked.test") {
			r.Errorf("credentials: to the registry %v, to its storage %v", out.trusted("locked.test"),
				out.trusted("blobs.locked.test"))
		}
	})
	r.sub("site-proxy-is-down", func(r rig) {
		a := r.app(8 * kib).push()
		r.hosts("lost.test", "server = \"http://lost.test\"\n")
		r.refused(r.pull(a.at("lost.test"), nil), codes.Unavailable, "lost.test")
	})
}
