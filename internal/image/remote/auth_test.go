package remote

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// tokens is a token server for joe.
type tokens struct {
	*server
	mu    sync.Mutex
	given int
	good  string // the token that is good now
	ttl   int    // seconds, as it says
}

func giveTokens(t *testing.T) *tokens {
	k := &tokens{good: "token-0"}
	k.server = serve(t, k.give)
	return k
}

func (k *tokens) give(w http.ResponseWriter, r *http.Request) bool {
	_ = r.ParseForm()
	user, secret, _ := r.BasicAuth()
	if r.Method == http.MethodPost {
		user, secret = r.Form.Get("username"), r.Form.Get("password")
		if r.Form.Get("grant_type") == "refresh_token" {
			user, secret = "identity", r.Form.Get("refresh_token")
		}
	}
	if who := user + ":" + secret; who != "joe:s3cret" && who != "identity:long-lived" && who != ":" {
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.given++
	_ = json.NewEncoder(w).Encode(map[string]any{"token": k.good, "access_token": k.good, "expires_in": k.ttl})
	return true
}

func (k *tokens) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.good += "+"
}

// lets answers for a registry that wants the token that is good now.
func (k *tokens) lets(w http.ResponseWriter, r *http.Request) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Header.Get("Authorization") == "Bearer "+k.good {
		return false
	}
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, k.URL))
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

func TestCredentials(t *testing.T) {
	k := giveTokens(t)
	bearers, basics := serve(t, k.lets), serve(t, basic)
	body := noise(t, 100)
	desc := bearers.put(body)
	basics.put(body)
	r := newRig(t, Options{clock: quick()})
	encoded := base64.StdEncoding.EncodeToString([]byte("joe:s3cret"))
	for name, c := range map[string]struct {
		s    *server
		auth *Auth
		kind error // nil: it works
	}{
		"basic":          {basics, joe, nil},
		"basic, encoded": {basics, &Auth{Auth: encoded}, nil},
		"basic, named":   {basics, &Auth{Auth: encoded, ServerAddress: "https://" + basics.host + "/v2/"}, nil},
		"basic, wrong":   {basics, &Auth{Username: "joe", Password: "password1"}, errdefs.ErrUnauthenticated},
		"basic, none":    {basics, nil, errdefs.ErrUnauthenticated},
		"basic, elsewhere": {basics, &Auth{Username: "joe", Password: "s3cret", ServerAddress: "elsewhere.test"},
			errdefs.ErrUnauthenticated},
		"token":             {bearers, joe, nil},
		"token, anonymous":  {bearers, nil, nil},
		"token, identity":   {bearers, &Auth{IdentityToken: "long-lived"}, nil},
		"token, wrong":      {bearers, &Auth{Username: "joe", Password: "password1"}, errdefs.ErrUnauthenticated},
		"identity, wrong":   {bearers, &Auth{IdentityToken: "password1"}, errdefs.ErrUnauthenticated},
		"registry token":    {bearers, &Auth{RegistryToken: "token-0"}, nil},
		"registry token no": {bearers, &Auth{RegistryToken: "password1"}, errdefs.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fetch(t.Context(), r.repo(t, c.s.host+"/app", c.auth), desc)
			if c.kind != nil {
				fails(t, err, c.kind, c.s.host)
				if strings.Contains(err.Error(), "password1") {
					t.Errorf("a secret in %v", err)
				}
				return
			}
			if err != nil || string(got) != string(body) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	for _, q := range k.requests() {
		if q.Method == http.MethodGet && q.URL.Query().Get("scope") != "repository:app:pull" {
			t.Errorf("asked for the scope %q", q.URL.Query().Get("scope"))
		}
	}
	for _, bad := range []*Auth{{Auth: "!!"}, {Auth: base64.StdEncoding.EncodeToString([]byte("joe"))}} {
		_, err := r.Repository(t.Context(), named(t, "a/b"), bad)
		fails(t, err, errdefs.ErrInvalidArgument, "registry credentials")
	}
}

// TestTokenRunsOut lets tokens expire in the middle of a blob that comes over several connections.
func TestTokenRunsOut(t *testing.T) {
	k := giveTokens(t)
	var s *server
	var n atomic.Int64
	s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if k.lets(w, r) {
			return true
		}
		if n.Add(1)%6 == 0 {
			k.renew()
		}
		return slowly(s, 2*time.Millisecond)(w, r)
	})
	body := noise(t, 1<<20)
	desc := s.put(body)
	r := newRig(t, Options{sizes: small})
	wantsInParts(t, r.repo(t, s.host+"/app", joe), desc, body)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.given < 3 || k.given > int(n.Load()) {
		t.Errorf("%d tokens for %d requests", k.given, n.Load())
	}
}

// TestTokenServerRecovers fails once: that is not remembered.
func TestTokenServerRecovers(t *testing.T) {
	k := giveTokens(t)
	var n atomic.Int64
	give := k.answer
	k.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return give(w, r)
	}
	s := serve(t, k.lets)
	desc := s.put([]byte("layer"))
	wants(t, newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", joe), desc, []byte("layer"))
}

// TestTokenServerAsksToWait is overloaded, and says for how long.
func TestTokenServerAsksToWait(t *testing.T) {
	for name, c := range map[string]struct {
		auth   *Auth
		status int
	}{
		"anonymous": {nil, http.StatusTooManyRequests}, "password": {joe, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			k := giveTokens(t)
			var n atomic.Int64
			give := k.answer
			k.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if n.Add(1) == 1 {
					w.Header().Set("Retry-After", "7")
					w.WriteHeader(c.status)
					return true
				}
				return give(w, r)
			}
			s := serve(t, k.lets)
			desc := s.put([]byte("layer"))
			clk := quick()
			wants(t, newRig(t, Options{clock: clk}).repo(t, s.host+"/app", c.auth), desc, []byte("layer"))
			if waits := clk.waits(); !slices.Contains(waits, 7*time.Second) {
				t.Errorf("waits: %v", waits)
			}
		})
	}
	k := giveTokens(t)
	k.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"errors":[{"message":"too much, joe with s3cret"}]}`)
		return true
	}
	s := serve(t, k.lets)
	_, err := fetch(t.Context(), newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", joe), s.put([]byte("layer")))
	fails(t, err, crierrors.ErrRegistryUnavailable, "token server "+k.host, "429", "too much", "1h0m0s")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a secret in %v", err)
	}
}

// TestTokensStayAtHome has registries whose token servers would have the credentials go astray.
func TestTokensStayAtHome(t *testing.T) {
	thief := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, `{"token":"stolen"}`)
		return true
	})
	leads := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, thief.URL+"/token", http.StatusTemporaryRedirect)
		return true
	})
	challenge := func(realm string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	redirected := serve(t, challenge(leads.URL))
	secure := start(t, challenge(thief.URL), (*httptest.Server).StartTLS)
	for name, c := range map[string]struct {
		url, words string
	}{
		"redirected":          {redirected.URL, "no credentials are sent there"},
		"http behind https":   {secure.URL, "no TLS"},
		"redirected, unknown": {serve(t, challenge("ftp://x")).URL, ""},
	} {
		for kind, auth := range map[string]*Auth{"password": {Username: "joe", Password: "s3cret"},
			"identity": {IdentityToken: "long-lived"}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				r := newRig(t, Options{clock: quick()})
				r.hosts(t, "registry.test", "server = %q\nskip_verify = true\n[header]\nX-Key = \"mine\"\n", c.url)
				auth.ServerAddress = strings.TrimPrefix(strings.TrimPrefix(c.url, "https://"), "http://")
				_, err := r.repo(t, "registry.test/app:v1", auth).Resolve(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("got %v", err)
				}
			})
		}
	}
	for _, q := range thief.requests() {
		body, _ := io.ReadAll(q.Body)
		if text := fmt.Sprint(q.Header, q.URL, string(body)); strings.Contains(text, "s3cret") ||
			strings.Contains(text, "long-lived") || q.Header.Get("Authorization") != "" {
			t.Errorf("the thief got %s", text)
		}
	}
	for _, q := range append(thief.requests(), leads.requests()...) {
		if q.Header.Get("X-Key") != "" {
			t.Error("the registry's own header went to a token server")
		}
	}
}

// TestSecretsInAnswers has a registry that repeats what it was sent.
func TestSecretsInAnswers(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if basic(w, r) {
			return true
		}
		_, password, _ := r.BasicAuth()
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(
			map[string]any{
				"errors": []map[string]string{
					{"message": strings.Repeat("x", 170) + " " + r.Header.Get("Authorization") + " and " + password}}})
		return true
	})
	desc := s.put([]byte("layer"))
	_, err := fetch(t.Context(), newRig(t, Options{}).repo(t, s.host+"/app", joe), desc)
	fails(t, err, errdefs.ErrPermissionDenied, "403", "xxx")
	if text := err.Error(); strings.Contains(text, "s3cret") ||
		strings.Contains(text, base64.StdEncoding.EncodeToString([]byte("joe:"))[:4]) {
		t.Errorf("a secret in %v", err)
	}
}

// TestHangingTokenServer gives up waiting for a token that another request is fetching.
func TestHangingTokenServer(t *testing.T) {
	k := giveTokens(t)
	asked := make(chan struct{}, 10)
	k.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		asked <- struct{}{}
		<-r.Context().Done()
		return true
	}
	s := serve(t, k.lets)
	repo := newRig(t, Options{}).repo(t, s.host+"/app:v1", nil)
	results := make(chan error, 3)
	ctx, cancel := cancelled(t)
	for range 3 {
		go func() {
			_, err := repo.Resolve(ctx)
			results <- err
		}()
	}
	<-asked
	cancel()
	for range 3 {
		if err := <-results; err == nil || strings.Contains(err.Error(), "resolve") {
			t.Errorf("got %v", err)
		}
	}
	eventually(t, "the token server sees the end", func() bool { return k.over() == len(k.requests()) })
}
