package remote

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// public is a registry that wants a token for whatever it has, and a token server that gives one to everybody.
type public struct {
	*server
	tokens *server
	token  string
}

const movedScope = "repository:moved/app:pull"

func servePublic(t *testing.T, name string) *public {
	p := &public{token: "token-of-" + name}
	p.tokens = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if asked := r.URL.Query()["scope"]; len(asked) != 1 || asked[0] != movedScope { // some refuse all for one
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": p.token})
		return true
	})
	p.server = serve(t, p.lets)
	return p
}

func (p *public) lets(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Authorization") == "Bearer "+p.token {
		return false
	}
	w.Header().Add("WWW-Authenticate", `Basic realm="x"`)
	w.Header().Add("WWW-Authenticate",
		fmt.Sprintf(`Bearer realm="%s/token",service="public",scope="%s"`, p.tokens.URL, movedScope))
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// movedTo redirects to where p has what it is asked for.
func movedTo(p string, code int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Location", p+strings.Replace(r.URL.Path, "/v2/app/", "/v2/moved/app/", 1))
		w.WriteHeader(code)
		return true
	}
}

// shownNothing wants none of a server's requests to have any of the words, in whatever place.
func shownNothing(t *testing.T, who string, s *server, words ...string) {
	t.Helper()
	for _, q := range s.requests() {
		text := fmt.Sprint(q.Method, q.URL, q.Header)
		for _, word := range words {
			if strings.Contains(text, word) {
				t.Errorf("%s was shown %q: %s", who, word, text)
			}
		}
	}
}

// TestMovedRegistry has a registry redirect all that it is asked to another one, which wants a token even for what
// everybody may have. It gets one of its own token server, and nothing that was meant for the first.
func TestMovedRegistry(t *testing.T) {
	k := giveTokens(t)
	for name, c := range map[string]struct {
		lets func(http.ResponseWriter, *http.Request) bool
		auth *Auth
		code int
	}{
		"anonymous":      {nil, nil, http.StatusTemporaryRedirect},
		"password":       {basic, joe, http.StatusPermanentRedirect},
		"token":          {k.lets, joe, http.StatusFound},
		"identity":       {k.lets, &Auth{IdentityToken: "long-lived"}, http.StatusMovedPermanently},
		"registry token": {k.lets, &Auth{RegistryToken: "token-0"}, http.StatusSeeOther},
	} {
		t.Run(name, func(t *testing.T) {
			to := servePublic(t, "b")
			moved := movedTo(to.URL, c.code)
			from := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				return c.lets != nil && c.lets(w, r) || moved(w, r)
			})
			body := noise(t, 100)
			desc := to.put(body, "v1")
			r := newRig(t, Options{clock: quick()})
			r.hosts(t, "registry.test", "server = %q\n[header]\nX-Key = \"mine\"\n", from.URL)
			auth := c.auth
			if auth != nil {
				of := *auth
				of.ServerAddress, auth = from.host, &of
			}
			repo := r.repo(t, "registry.test/app:v1", auth)
			found, err := repo.Resolve(t.Context())
			if err != nil || found.Digest != desc.Digest {
				t.Fatalf("%v, %v", found, err)
			}
			wants(t, repo, desc, body)
			wants(t, repo, to.put([]byte("two")), []byte("two"))
			for who, s := range map[string]*server{"the second": to.server, "its token server": to.tokens} {
				shownNothing(t, who, s, "Basic ", "s3cret", "long-lived", "token-0", "X-Key", "mine")
			}
			shownNothing(t, "the first", from, to.token)
			shownNothing(t, "its token server", k.server, to.token)
			if n, m := len(to.requests()), len(to.tokens.requests()); n != 4 || m != 1 {
				t.Errorf("the second was asked %d times, for %d tokens; want 4, one of them without a token", n, m)
			}
			if !strings.HasPrefix(to.requests()[0].URL.Path, "/v2/moved/app/manifests/") {
				t.Errorf("it was asked for %s", to.requests()[0].URL)
			}
		})
	}
}

// TestMovedRegistryInParts fetches a blob over several connections from where it was redirected to.
func TestMovedRegistryInParts(t *testing.T) {
	to := servePublic(t, "b")
	slow := slowly(to.server, 2*time.Millisecond)
	to.answer = func(w http.ResponseWriter, r *http.Request) bool { return to.lets(w, r) || slow(w, r) }
	from := serve(t, movedTo(to.URL, http.StatusTemporaryRedirect))
	body := noise(t, 600<<10)
	desc := to.put(body)
	r := newRig(t, Options{sizes: small, clock: realClock{}, Connections: 4})
	wantsInParts(t, r.repo(t, from.host+"/app", nil), desc, body)
	if n, m := len(from.requests()), len(to.requests()); n > 6 || m < 8 {
		t.Errorf("the first was asked %d times, the second %d", n, m)
	}
	if n := len(to.tokens.requests()); n != 1 {
		t.Errorf("%d tokens", n)
	}
}

// TestTokensOfAPull are of one pull, and of the origin that asked for each: a pull with other credentials begins anew,
// also at the second registry itself.
func TestTokensOfAPull(t *testing.T) {
	to := servePublic(t, "b")
	from := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		return basic(w, r) || movedTo(to.URL, http.StatusTemporaryRedirect)(w, r)
	})
	desc := to.put([]byte("layer"))
	r := newRig(t, Options{clock: quick()})
	r.hosts(t, "registry.test", "server = %q\n", from.URL)
	auth := &Auth{Username: "joe", Password: "s3cret", ServerAddress: from.host}
	for n := range 3 {
		wants(t, r.repo(t, "registry.test/app", auth), desc, []byte("layer"))
		if m := len(to.tokens.requests()); m != n+1 {
			t.Errorf("%d tokens for %d pulls", m, n+1)
		}
	}
	_, err := fetch(t.Context(), r.repo(t, "registry.test/app", nil), desc)
	fails(t, err, errdefs.ErrUnauthenticated, from.host)
	if n := len(to.requests()); n != 6 {
		t.Errorf("who may not read from the first got to the second: %d requests", n)
	}
}

// TestMovedInARound leads over two registries, of which each wants a token of its own, to a store that wants none; and
// in a circle.
func TestMovedInARound(t *testing.T) {
	b, c, store := servePublic(t, "b"), servePublic(t, "c"), serve(t, nil)
	a := serve(t, movedTo(b.URL, http.StatusTemporaryRedirect))
	on := func(p *public, to string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return p.lets(w, r) || movedTo(to, http.StatusTemporaryRedirect)(w, r)
		}
	}
	b.answer, c.answer = on(b, c.URL), on(c, store.URL)
	desc := store.put([]byte("layer"))
	r := newRig(t, Options{clock: quick()})
	repo := r.repo(t, a.host+"/app", nil)
	wants(t, repo, desc, []byte("layer"))
	c.answer = on(c, a.URL)
	_, err := fetch(t.Context(), r.repo(t, a.host+"/app", nil), desc)
	fails(t, err, errdefs.ErrUnknown, "too many redirects")
	shownNothing(t, "a", a, b.token, c.token)
	shownNothing(t, "b", b.server, c.token)
	shownNothing(t, "c", c.server, b.token)
	shownNothing(t, "the store", store, "Authorization")
	if n, m := len(b.tokens.requests()), len(c.tokens.requests()); n != 2 || m != 2 {
		t.Errorf("%d and %d tokens for two pulls", n, m)
	}
}

// TestStoreThatRefuses is redirected to what answers 401 and 403 as object stores do: that is the end of it, as it is
// where a password is wanted.
func TestStoreThatRefuses(t *testing.T) {
	nobody := serve(t, nil) // a token server that is not asked
	bearer := `Bearer realm="` + nobody.URL + `/token"`
	for name, c := range map[string]struct {
		status int
		says   string
		kind   error
	}{
		"401":            {http.StatusUnauthorized, "", errdefs.ErrUnauthenticated},
		"a password":     {http.StatusUnauthorized, `Basic realm="x"`, errdefs.ErrUnauthenticated},
		"no token realm": {http.StatusUnauthorized, `Bearer service="x"`, errdefs.ErrUnauthenticated},
		"AWS":            {http.StatusUnauthorized, `AWS4-HMAC-SHA256`, errdefs.ErrUnauthenticated},
		"403":            {http.StatusForbidden, bearer, errdefs.ErrPermissionDenied},
		"404":            {http.StatusNotFound, bearer, errdefs.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			store := serve(t, func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("WWW-Authenticate", c.says)
				w.WriteHeader(c.status)
				return true
			})
			from := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				return basic(w, r) || movedTo(store.URL, http.StatusTemporaryRedirect)(w, r)
			})
			r := newRig(t, Options{clock: quick()})
			_, err := fetch(t.Context(), r.repo(t, from.host+"/app", joe), from.put([]byte("layer")))
			fails(t, err, c.kind, "redirects to "+store.host)
			shownNothing(t, "the store", store, "Authorization")
			if n := len(store.requests()); n != 1 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
	if n := len(nobody.requests()); n > 0 {
		t.Errorf("%d tokens", n)
	}
}

// TestMovedAndPrivate is redirected to a registry that does not let everybody in, or whose token server does not.
func TestMovedAndPrivate(t *testing.T) {
	for name, c := range map[string]struct {
		token func(w http.ResponseWriter, r *http.Request) bool
		words string
	}{
		"the registry": {func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, `{"token":"of-nobody"}`)
			return true
		}, "401"},
		"the token server": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"errors":[{"message":"who are you"}]}`)
			return true
		}, "who are you"},
		"it is led elsewhere": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "ftp://x", http.StatusFound)
			return true
		}, "fetch a token"},
	} {
		t.Run(name, func(t *testing.T) {
			to := servePublic(t, "b")
			to.tokens.answer = c.token
			from := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				return basic(w, r) || movedTo(to.URL, http.StatusTemporaryRedirect)(w, r)
			})
			r := newRig(t, Options{clock: quick()})
			_, err := fetch(t.Context(), r.repo(t, from.host+"/app", joe), to.put([]byte("layer")))
			if err == nil || !strings.Contains(err.Error(), "redirects to "+to.host) ||
				!strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "of-nobody") {
				t.Errorf("got %v", err)
			}
			shownNothing(t, "the second", to.server, "Basic ", "s3cret")
			shownNothing(t, "its token server", to.tokens, "Authorization", "s3cret")
			if n := len(to.requests()); n > 20 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

// TestMovedBehindTLS redirects to a registry with TLS whose token server has none. That is asked, as any such server is
// where there are no credentials.
func TestMovedBehindTLS(t *testing.T) {
	to := servePublic(t, "b")
	secure := start(t, to.lets, (*httptest.Server).StartTLS)
	from := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		return basic(w, r) || movedTo(secure.URL, http.StatusPermanentRedirect)(w, r)
	})
	desc := secure.put([]byte("layer"))
	r := newRig(t, Options{clock: quick()})
	repo := r.repo(t, from.host+"/app", joe)
	repo.hosts[0].outside.Transport = secure.Client().Transport
	wants(t, repo, desc, []byte("layer"))
	shownNothing(t, "its token server", to.tokens, "Authorization", "s3cret")
}

// TestAwayGatesAreFew bounds what is kept of where a host redirects to, and takes the ways to write an origin for one.
func TestAwayGatesAreFew(t *testing.T) {
	a := &awayGates{tokens: New(Options{}).tokenRoutes(&http.Transport{}), gates: map[string]*gate{}}
	ask := func(address string) *gate {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return a.asked(&http.Response{Request: &http.Request{URL: u},
			Header: http.Header{"Www-Authenticate": {`Bearer realm="https://tokens.test"`}}})
	}
	first := ask("https://b.test/v2/")
	if first == nil || ask("HTTPS://B.test:443/v2/x") != first || ask("http://b.test/v2/") == first {
		t.Error("a gate is not that of an origin")
	}
	for n := range 2 * mostAwayGates {
		ask(fmt.Sprintf("https://b.test:%d/v2/", n+1000))
	}
	if len(a.gates) != mostAwayGates || ask("https://c.test/") != nil || ask("https://b.test/") != first {
		t.Errorf("%d gates", len(a.gates))
	}
}

// TestForeignPlaceWantsAToken is not given one: a manifest would choose who is asked for it.
func TestForeignPlaceWantsAToken(t *testing.T) {
	place, registry := servePublic(t, "b"), serve(t, nil)
	desc := place.put([]byte("layer"))
	desc.MediaType, desc.URLs = foreignType, []string{place.URL + "/x"}
	r := newRig(t, Options{clock: quick(), ForeignURLs: true, dialable: anywhere})
	_, err := fetch(t.Context(), r.repo(t, registry.host+"/app", nil), desc)
	fails(t, err, errdefs.ErrUnauthenticated, place.host)
	if n := len(place.tokens.requests()); n > 0 {
		t.Errorf("%d tokens", n)
	}
}
