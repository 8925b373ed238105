package remote

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/test/fixture"
)

// TestHostsInOrder goes through mirrors that are down, lack it, refuse, are broken, and through those that are not for
// what is asked.
func TestHostsInOrder(t *testing.T) {
	body, manifest := noise(t, 3000), []byte(`{"schemaVersion":2}`)
	says := func(code int) *server {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true })
	}
	lacks, refuses, denies, broken, pushed, pulls, origin := serve(t, nil), says(401), says(403), says(500), serve(t, nil),
		serve(t, nil), serve(t, nil)
	origin.put(manifest, "v1")
	desc := pulls.put(body)
	r := newRig(t, Options{clock: quick()})
	text := fmt.Sprintf("server = %q\n[host.\"http://127.0.0.1:1\"]\n", origin.URL)
	for _, s := range []*server{lacks, refuses, denies, broken} {
		text += fmt.Sprintf("[host.%q]\n", s.URL)
	}
	text += fmt.Sprintf("[host.%q]\ncapabilities = [\"push\"]\n[host.%q]\ncapabilities = [\"pull\"]\n", pushed.URL,
		pulls.URL)
	r.hosts(t, "registry.test:5000", "%s", text)
	repo := r.repo(t, "registry.test:5000/app:v1", &Auth{Username: "joe", Password: "s3cret"})
	found, err := repo.Resolve(t.Context())
	if err != nil || found.Size != int64(len(manifest)) {
		t.Fatalf("%+v, %v", found, err)
	}
	if len(pulls.requests()) > 0 {
		t.Error("a mirror that may not resolve was asked to")
	}
	wants(t, repo, desc, body)
	if len(pushed.requests()) > 0 {
		t.Error("a mirror that may not pull was asked to")
	}
	for _, s := range []*server{lacks, refuses, denies, broken, pulls} {
		for _, q := range s.requests() {
			if got := q.URL.Query().Get("ns"); got != "registry.test:5000" {
				t.Errorf("ns=%q", got)
			}
			if q.Header.Get("Authorization") != "" {
				t.Error("a mirror was given the registry's credentials")
			}
		}
	}
	_, err = r.repo(t, "registry.test:5000/app:v2", nil).Resolve(t.Context())
	fails(t, err, errdefs.ErrNotFound, "connection refused", lacks.host+": 404", refuses.host+": 401",
		denies.host+": 403", broken.host+": 500", origin.host+": 404")
}

// TestDownMirrorIsAskedLast dials a dead mirror once, not for each blob.
func TestDownMirrorIsAskedLast(t *testing.T) {
	origin := serve(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dials := make(chan struct{}, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dials <- struct{}{}
			_ = c.(*net.TCPConn).SetLinger(0)
			defer c.Close() // at the end: it never answers
		}
	}()
	r := newRig(t, Options{Stall: forever})
	r.hosts(t, "registry.test", "server = %q\n[host.\"https://%s\"]\ndial_timeout = \"1s\"\n"+
		"[host.\"http://127.0.0.1:1\"]\n", origin.URL, l.Addr())
	repo := r.repo(t, "registry.test/app", nil)
	repo.hosts[0].client.Transport.(*http.Transport).TLSHandshakeTimeout = 100_000_000
	for i := range 5 {
		body := []byte(fmt.Sprint(i))
		wants(t, repo, origin.put(body), body)
	}
	if n := len(dials); n > 1 {
		t.Errorf("dialled %d times", n)
	}
}

// TestDownMirrorIsNobodyToAsk has a registry that wants a pause, and a mirror that is known to be dead: it gets the
// pause.
func TestDownMirrorIsNobodyToAsk(t *testing.T) {
	var busy atomic.Bool
	origin := serve(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if !busy.Swap(false) {
			return false
		}
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	clk := quick()
	r := newRig(t, Options{clock: clk})
	r.hosts(t, "registry.test", "server = %q\n[host.\"http://127.0.0.1:1\"]\n", origin.URL)
	repo := r.repo(t, "registry.test/app", nil)
	wants(t, repo, origin.put([]byte("one")), []byte("one"))
	busy.Store(true)
	wants(t, repo, origin.put([]byte("two")), []byte("two"))
	if waits := clk.waits(); !slices.Contains(waits, 30*time.Second) {
		t.Errorf("waits: %v", waits)
	}
}

func TestTLS(t *testing.T) {
	ca, cert, key, err := fixture.Certificate("client", net.IPv4(127, 0, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	s := start(t, nil, (*httptest.Server).StartTLS)
	strict := start(t, nil, func(h *httptest.Server) {
		h.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
		h.StartTLS()
	})
	body := noise(t, 100)
	desc := s.put(body)
	strict.put(body)
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for name, c := range map[string]struct {
		s     *server
		lines string
		works bool
	}{
		"nothing":     {s, "", false},
		"ca":          {s, `ca = "../ca.pem"`, true},
		"cas":         {s, `ca = ["../client.pem", "../ca.pem"]`, true},
		"skip_verify": {s, `skip_verify = true`, true},
		"no client":   {strict, `ca = "../ca.pem"`, false},
		"client":      {strict, "ca = \"../ca.pem\"\nclient = \"../both.pem\"", true},
		"clients":     {strict, "ca = \"../ca.pem\"\nclient = [\"../both.pem\"]", true},
		"pair":        {strict, "ca = \"../ca.pem\"\nclient = [[\"../client.pem\", \"../client.key\"]]", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{clock: quick()})
			for file, text := range map[string]string{"ca.pem": own, "client.pem": string(cert), "client.key": string(key),
				"both.pem": string(cert) + string(key)} {
				r.file(t, file, text)
			}
			r.hosts(t, "registry.test", "server = %q\n%s\n", c.s.URL, c.lines)
			got, err := fetch(t.Context(), r.repo(t, "registry.test/app", nil), desc)
			if c.works {
				if err != nil || string(got) != string(body) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				return
			}
			fails(t, err, crierrors.ErrRegistryUnavailable, c.s.host)
		})
	}
	t.Run("Docker's files", func(t *testing.T) {
		r := newRig(t, Options{clock: quick()})
		_, port, _ := net.SplitHostPort(strict.host)
		dir := "example.com_" + port + "_"
		r.file(t, dir+"/my.crt", own)
		r.file(t, dir+"/me.cert", string(cert))
		r.file(t, dir+"/me.key", string(key))
		repo := r.repo(t, "example.com:"+port+"/app", nil)
		if len(repo.hosts) != 1 || repo.hosts[0].base.String() != "https://example.com:"+port+"/v2" {
			t.Fatalf("hosts: %v", repo.hosts[0].base)
		}
		c := repo.hosts[0].client.Transport.(*http.Transport).TLSClientConfig
		if len(c.Certificates) != 1 || c.RootCAs == nil {
			t.Error("the files were not taken")
		}
	})
}

// TestClientCertificateStaysAtHome redirects from a registry that wants a client certificate to one that would take it,
// as would its token server.
func TestClientCertificateStaysAtHome(t *testing.T) {
	ca, cert, key, err := fixture.Certificate("client", net.IPv4(127, 0, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	asks := func(how tls.ClientAuthType) func(h *httptest.Server) {
		return func(h *httptest.Server) {
			h.TLS = &tls.Config{ClientAuth: how, ClientCAs: pool}
			h.StartTLS()
		}
	}
	var other *server
	other = start(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			_, _ = io.WriteString(w, `{"token":"anonymous"}`)
		case r.Header.Get("Authorization") != "Bearer anonymous":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+other.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			return false
		}
		return true
	}, asks(tls.RequestClientCert))
	home := start(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}, asks(tls.RequireAndVerifyClientCert))
	desc := other.put([]byte("layer"))
	r := newRig(t, Options{clock: quick()})
	r.file(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})))
	r.file(t, "both.pem", string(cert)+string(key))
	r.hosts(t, "registry.test", "server = %q\nca = \"../ca.pem\"\nclient = \"../both.pem\"\n", home.URL)
	repo := r.repo(t, "registry.test/app", nil)
	wants(t, repo, desc, []byte("layer"))
	if n := len(other.requests()); n != 3 {
		t.Errorf("it was asked %d times; want it twice, and once for a token", n)
	}
	for _, q := range other.requests() {
		if len(q.TLS.PeerCertificates) > 0 {
			t.Error("the certificate went along")
		}
	}
	repo.Close()
	eventually(t, "idle connections are closed", func() bool { return ours() == 0 })
}

// TestPlaces checks which directory counts and where requests go.
func TestPlaces(t *testing.T) {
	r := newRig(t, Options{})
	r.hosts(t, "_default", "[host.\"https://cache.test/mirror\"]\n")
	r.hosts(t, "named.test_5000_", "[host.\"https://cache.test/api\"]\noverride_path = true\n")
	r.hosts(t, "[::1]_5000_", "server = \"http://[::2]:6000\"\n")
	r.hosts(t, "twice.test", "server = \"https://twice.test\"\n[host.\"https://twice.test\"]\nskip_verify = true\n")
	r.hosts(t, "docker.io", "")
	for ref, want := range map[string]string{
		"any.test/a/b:v1":      "https://cache.test/mirror/v2/a/b/x?ns=any.test https://any.test/v2/a/b/x",
		"named.test:5000/a:v1": "https://cache.test/api/a/x?ns=named.test%3A5000 https://named.test:5000/v2/a/x",
		"[::1]:5000/a:v1":      "http://[::2]:6000/v2/a/x?ns=%5B%3A%3A1%5D%3A5000",
		"twice.test/a":         "https://twice.test/v2/a/x",
		"busybox":              "https://registry-1.docker.io/v2/library/busybox/x",
		"registry-1.docker.io/a/b:tag": "https://cache.test/mirror/v2/a/b/x?ns=registry-1.docker.io " +
			"https://registry-1.docker.io/v2/a/b/x",
	} {
		repo := r.repo(t, ref, nil)
		var got []string
		for _, h := range repo.hosts {
			got = append(got, h.url(repo.path()+"/x").String())
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, want %s", ref, text, want)
		}
	}
}

func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 on loopback")
	}
	s := start(t, nil, func(h *httptest.Server) { _ = h.Listener.Close(); h.Listener = l; h.Start() })
	body := noise(t, 100)
	desc := s.put(body)
	wants(t, newRig(t, Options{}).repo(t, s.host+"/app", &Auth{Username: "joe", Password: "x", ServerAddress: s.host}),
		desc, body)
}

// TestBadConfiguration is never ignored, and says which file it is in. Mended, it counts from the next pull.
func TestBadConfiguration(t *testing.T) {
	r := newRig(t, Options{})
	for name, text := range map[string]string{
		"no toml":       `server = [`,
		"capability":    `capabilities = ["fly"]`,
		"no file":       `ca = "gone.pem"`,
		"no pem":        `ca = "hosts.toml"`,
		"client":        `client = 7`,
		"pair":          `client = [["one"]]`,
		"header":        "[header]\nX = 1",
		"timeout":       `dial_timeout = "soon"`,
		"another kind":  `server = "httpx://a"`,
		"odd mirror":    "[host.\"http\"]",
		"server number": `server = 1`,
		"redirects":     `allow_http_redirects = "yes"`,
		"first byte":    `first_byte_timeout = "soon"`,
		"no first byte": "[host.\"https://a\"]\nfirst_byte_timeout = \"0s\"",
	} {
		r.hosts(t, "registry.test", "%s\n", text)
		_, err := r.Repository(t.Context(), named(t, "registry.test/app"), nil)
		t.Run(name, func(t *testing.T) {
			fails(t, err, errdefs.ErrUnknown, filepath.Join(r.dir, "registry.test", "hosts.toml"))
		})
	}
	file := filepath.Join(r.dir, "registry.test", "hosts.toml")
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Repository(t.Context(), named(t, "registry.test/app"), nil)
	fails(t, err, errdefs.ErrUnknown, "it is not a regular file")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.hosts(t, "registry.test", "server = \"https://elsewhere.test\"\n")
	if repo := r.repo(t, "registry.test/app", nil); repo.hosts[0].name != "elsewhere.test" {
		t.Error("the mended file does not count")
	}
}

func TestHeaders(t *testing.T) {
	elsewhere := serve(t, nil)
	mirror := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	body := noise(t, 100)
	desc := elsewhere.put(body)
	r := newRig(t, Options{})
	r.hosts(t, "registry.test", "[host.%q]\n[host.%q.header]\nx-key = \"mine\"\nX-Keys = [\"a\", \"b\"]\nauthorization "+
		"= \"Basic aGk6aG8=\"\n", mirror.URL, mirror.URL)
	wants(t, r.repo(t, "registry.test/app", nil), desc, body)
	h := mirror.requests()[0].Header
	if h.Get("X-Key") != "mine" || len(h.Values("X-Keys")) != 2 || h.Get("Authorization") == "" {
		t.Errorf("the mirror got %v", h)
	}
	h = elsewhere.requests()[0].Header
	if h.Get("X-Key") != "" || h.Get("X-Keys") != "" || h.Get("Authorization") != "" {
		t.Errorf("the place it redirects to got %v", h)
	}
}
