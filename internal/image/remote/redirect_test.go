package remote

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

var joe = &Auth{Username: "joe", Password: "s3cret"}

// basic lets joe in.
func basic(w http.ResponseWriter, r *http.Request) bool {
	if user, password, _ := r.BasicAuth(); user == "joe" && password == "s3cret" {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// TestRedirects leads from a registry that wants credentials to places that may not have them.
func TestRedirects(t *testing.T) {
	body := noise(t, 100)
	secure := start(t, nil, (*httptest.Server).StartTLS)
	other := serve(t, nil)
	desc := other.put(body)
	secure.put(body)
	for name, c := range map[string]struct {
		to    func(s *server, path string) string
		works bool
		keeps bool // the credentials
	}{
		"same place":     {func(s *server, path string) string { return path + "?again" }, true, true},
		"another port":   {func(_ *server, path string) string { return other.URL + path }, true, false},
		"another scheme": {func(s *server, path string) string { return "https://" + s.host + path }, false, false},
		"with TLS":       {func(_ *server, path string) string { return secure.URL + path }, true, false},
		"around": {func(s *server, path string) string {
			return other.URL + "/to?" + s.URL + path + "?again"
		}, false, false},
		"in circles": {func(s *server, path string) string { return s.URL + path }, false, true},
		"nowhere":    {func(*server, string) string { return "gopher://x" }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if basic(w, r) || r.URL.RawQuery == "again" {
					return r.URL.RawQuery != "again" || r.Header.Get("Authorization") == ""
				}
				w.Header().Set("Location", c.to(s, r.URL.Path))
				w.WriteHeader(http.StatusTemporaryRedirect)
				return true
			})
			s.put(body)
			other.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/to" {
					http.Redirect(w, r, r.URL.RawQuery, http.StatusFound)
				}
				return r.URL.Path == "/to"
			}
			seen := len(other.requests())
			r := newRig(t, Options{clock: quick()})
			r.hosts(t, "registry.test", "server = %q\n", s.URL)
			repo := r.repo(t, "registry.test/app", &Auth{Username: "joe", Password: "s3cret", ServerAddress: s.host})
			// what is behind TLS has a certificate of its own
			repo.hosts[0].outside.Transport = secure.Client().Transport
			got, err := fetch(t.Context(), repo, desc)
			if (err == nil && string(got) == string(body)) != c.works {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			for _, q := range append(other.requests()[seen:], secure.requests()...) {
				if q.Header.Get("Authorization") != "" {
					t.Error("the credentials went along")
				}
			}
		})
	}
}

// TestNoWayOutOfTLS refuses to be led from https to http.
func TestNoWayOutOfTLS(t *testing.T) {
	plain := serve(t, nil)
	desc := plain.put([]byte("layer"))
	s := start(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, plain.URL+r.URL.Path+"?signature=hidden", http.StatusFound)
		return true
	}, (*httptest.Server).StartTLS)
	r := newRig(t, Options{})
	r.hosts(t, "registry.test", "server = %q\nskip_verify = true\n", s.URL)
	_, err := fetch(t.Context(), r.repo(t, "registry.test/app", joe), desc)
	fails(t, err, errdefs.ErrUnknown, "without TLS", plain.host)
	if strings.Contains(err.Error(), "hidden") || len(plain.requests()) > 0 {
		t.Errorf("%d requests without TLS, %v", len(plain.requests()), err)
	}
}

// TestOutOfTLSBySwitch follows redirects from https to http for a host that hosts.toml allows it, for what a digest
// proves, and takes nothing along that was meant for the host. A tag could be made to name anything there.
func TestOutOfTLSBySwitch(t *testing.T) {
	body := noise(t, 1000)
	plain := serve(t, nil)
	desc := plain.put(body, "v1")
	s := start(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !basic(w, r) {
			http.Redirect(w, r, plain.URL+r.URL.Path+"?signature=hidden", http.StatusFound)
		}
		return true
	}, (*httptest.Server).StartTLS)
	const verified, allowed = "skip_verify = true\n", "allow_http_redirects = true\n"
	for name, c := range map[string]struct {
		config string
		works  bool
	}{
		"server": {"server = %[1]q\n" + verified + allowed, true},
		"host": {"server = \"http://127.0.0.1:1\"\n[host.%[1]q]\n" + verified + allowed +
			"[host.%[1]q.header]\nx-key = \"mine\"\n", true},
		"another host":      {"server = %[1]q\n" + verified + "[host.\"http://127.0.0.1:1\"]\n" + allowed, false},
		"only the server":   {"server = \"http://127.0.0.1:1\"\n" + allowed + "[host.%[1]q]\n" + verified, false},
		"said to be closed": {"server = %[1]q\n" + verified + "allow_http_redirects = false\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			plain.asked = nil
			r := newRig(t, Options{clock: quick()})
			r.hosts(t, "registry.test", c.config, s.URL)
			repo := r.repo(t, "registry.test/app:v1", &Auth{Username: "joe", Password: "s3cret", ServerAddress: s.host})
			got, err := fetch(t.Context(), repo, desc)
			if worked := err == nil && string(got) == string(body); worked != c.works {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			if !c.works && !strings.Contains(err.Error(), "allow_http_redirects = true") {
				t.Errorf("%v does not name the switch", err)
			}
			for _, q := range plain.requests() {
				if q.Header.Get("Authorization") != "" || q.Header.Get("X-Key") != "" {
					t.Errorf("it was shown %v", q.Header)
				}
			}
			asked := len(plain.requests())
			if _, err := repo.Resolve(t.Context()); err == nil || c.works && !strings.Contains(err.Error(), "not for a tag") {
				t.Errorf("a tag was resolved over http: %v", err)
			}
			if n := len(plain.requests()); n != asked {
				t.Errorf("the tag was asked for %d times over http", n-asked)
			}
		})
	}
}

// TestSignedURLs go to the place that a registry named until that refuses, and then back to the registry.
func TestSignedURLs(t *testing.T) {
	body := noise(t, 600<<10)
	var good atomic.Int64 // the signature that is good now
	store := serve(t, nil)
	store.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("signature") != fmt.Sprint("hidden", good.Load()) {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		if rangeOf(r) >= 300<<10 && good.CompareAndSwap(0, 1) {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return slowly(store, 2*time.Millisecond)(w, r)
	}
	registry := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		u := store.URL + r.URL.Path + "?" + url.Values{"signature": {fmt.Sprint("hidden", good.Load())}}.Encode()
		http.Redirect(w, r, u, http.StatusTemporaryRedirect)
		return true
	})
	desc := store.put(body)
	r := newRig(t, Options{sizes: small, clock: realClock{}, Connections: 2})
	wantsInParts(t, r.repo(t, registry.host+"/app", nil), desc, body)
	if n, m := len(registry.requests()), len(store.requests()); n > 6 || m < 8 {
		t.Errorf("the registry was asked %d times, the store %d", n, m)
	}
	good.Store(99)
	store.answer = func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true }
	_, err := fetch(t.Context(), r.repo(t, registry.host+"/app", nil), desc)
	fails(t, err, errdefs.ErrPermissionDenied, store.host)
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("a signature in %v", err)
	}
}
