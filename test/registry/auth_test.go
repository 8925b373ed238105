package registry

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// TestPasswords pulls with right, wrong and no credentials from docker-registry with htpasswd, over TLS.
func TestPasswords(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true, TLS: true}), TLS: true})
	a := r.app(8 * kib)
	a.push(p.Target())
	r.refused(r.pull(a.at("localhost:1"), right), codes.Unavailable)
	r.hosts(p.Addr, mirror(p.URL(), `ca = "ca.pem"`), file{"ca.pem", p.CA})
	for name, c := range map[string]struct {
		auth *v1.AuthConfig
		code codes.Code
	}{
		"nobody": {nil, codes.Unauthenticated}, "wrong": {guess, codes.Unauthenticated},
		"other-host": {
			&v1.AuthConfig{Username: fixture.User, Password: fixture.Password, ServerAddress: "https://other.test"},
			codes.Unauthenticated},
		"no-base64": {&v1.AuthConfig{Auth: "%%%"}, codes.InvalidArgument},
		"no-colon":  {&v1.AuthConfig{Auth: "YmVydGg="}, codes.InvalidArgument},
		"right":     {right, codes.OK}, "auth": {&v1.AuthConfig{Auth: "YmVydGg6c2VjcmV0"}, codes.OK},
		"this-host": {&v1.AuthConfig{Username: fixture.User, Password: fixture.Password, ServerAddress: p.Addr}, codes.OK},
		"this-url": {
			&v1.AuthConfig{Username: fixture.User, Password: fixture.Password, ServerAddress: "https://" + p.Addr + "/v2/"},
			codes.OK},
	} {
		r.sub(name, func(r rig) {
			err := r.pull(a.at(p.Addr), c.auth)
			if c.code == codes.OK {
				r.ok(err)
				r.remove(a.at(p.Addr))
				return
			}
			r.refused(err, c.code)
			if strings.Contains(err.Error(), guess.Password) {
				r.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// signed makes a storage that serves only what was signed, so many times for each signature.
func (r rig) signed(o fixture.ProxyOptions, uses int) (storage *fixture.Proxy, sign func(*http.Request) string) {
	storage = r.proxy(o)
	var mu sync.Mutex // guards left and next
	left, next := map[string]int{}, 0
	sign = func(req *http.Request) string {
		mu.Lock()
		defer mu.Unlock()
		next++
		signature := "private-" + strings.Repeat("x", next)
		left[signature] = uses
		return storage.URL() + req.URL.Path + "?signature=" + signature
	}
	storage.On(fixture.Fault{Status: http.StatusForbidden, If: func(req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		signature := req.URL.Query().Get("signature")
		left[signature]--
		return left[signature] < 0
	}})
	return storage, sign
}

// TestRedirectsCarryNoSecrets has a registry that keeps its blobs elsewhere.
func TestRedirectsCarryNoSecrets(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true})})
	storage, sign := r.signed(fixture.ProxyOptions{Address: "127.0.0.2:0"}, 1<<20)
	p.On(fixture.Fault{Part: fixture.PartBlob, Redirect: sign})
	a := r.app(200*kib, 8*kib)
	a.push(p.Target(), r.registry()) // the storage asks nobody who they are
	r.hosts(p.Addr, mirror(p.URL(), `[host."`+p.URL()+`".header]`, `  X-Team = "private-header"`))
	r.ok(r.pull(a.at(p.Addr), right))
	a.arrived(a.at(p.Addr))
	r.hidden(storage, "Authorization")
	r.hidden(storage, "X-Team")
	if len(shown(p, "X-Team")) == 0 || len(shown(p, "Authorization")) == 0 {
		r.Error("the registry itself was not shown them")
	}
}

// TestRedirectToAnotherPort stays on the same host, which is another server all the same.
func TestRedirectToAnotherPort(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true})})
	other := r.proxy()
	p.On(fixture.Fault{Part: fixture.PartBlob, Redirect: func(req *http.Request) string {
		return other.URL() + req.URL.Path
	}})
	a := r.app(8 * kib)
	a.push(p.Target(), r.registry())
	r.ok(r.pull(a.at(p.Addr), right))
	a.arrived(a.at(p.Addr))
	r.hidden(other, "Authorization")
}

// TestSignatureThatEnds has a redirect that leads somewhere only once: for the rest of a blob the registry is asked
// again.
func TestSignatureThatEnds(t *testing.T) {
	r := open(t)
	p := r.proxy()
	storage, sign := r.signed(fixture.ProxyOptions{}, 1)
	a := r.app(mib).push()
	l := a.layers[0]
	p.On(l.on(fixture.Fault{Redirect: sign}))
	storage.On(l.on(fixture.Fault{End: fixture.EndHangup, After: 300 * kib, Times: 2}))
	a.works(a.at(p.Addr))
	if sent := l.sent(storage); sent > l.size+64*kib {
		r.Errorf("%d bytes were sent for a layer of %d: %v", sent, l.size, l.asked(storage))
	}
}

// TestErrorsHideSignatures has a storage that fails, behind a redirect whose query opens it.
func TestErrorsHideSignatures(t *testing.T) {
	r := open(t)
	p := r.proxy()
	storage, sign := r.signed(fixture.ProxyOptions{}, 0)
	a := r.app(8 * kib).push()
	p.On(fixture.Fault{Part: fixture.PartBlob, Redirect: sign})
	err := r.pull(a.at(p.Addr), nil)
	if err == nil || strings.Contains(err.Error(), "private-") || !strings.Contains(err.Error(), storage.Addr) {
		r.Errorf("the error is %v", err)
	}
	if strings.Contains(r.n.DaemonLog(1<<20), "signature=private-") {
		r.Error("the daemon's log shows a signature")
	}
}

// TestNoRedirectIntoTheOpen has a registry with TLS that sends its clients to a host without.
func TestNoRedirectIntoTheOpen(t *testing.T) {
	r := open(t)
	p, plain := r.proxy(fixture.ProxyOptions{TLS: true}), r.proxy()
	p.On(fixture.Fault{Part: fixture.PartBlob, Redirect: func(req *http.Request) string {
		return plain.URL() + req.URL.Path
	}})
	r.hosts(p.Addr, mirror(p.URL(), `ca = "ca.pem"`), file{"ca.pem", p.CA})
	a := r.app(8 * kib).push()
	if err := r.pull(a.at(p.Addr), nil); err == nil || !strings.Contains(err.Error(), "redirect") {
		r.Errorf("the error is %v", err)
	}
	if asked := plain.Requests(""); len(asked) > 0 {
		r.Errorf("the host without TLS was asked %v", asked)
	}
}

// TestMirrorsGetNoCredentials has a mirror that asks who the caller is.
func TestMirrorsGetNoCredentials(t *testing.T) {
	r := open(t)
	locked := r.ownRegistry(fixture.RegistryOptions{Auth: true})
	for name, c := range map[string]struct {
		server func(nosy *fixture.Proxy, host string) string
		mirror bool // it is the one who gets them
	}{
		"for-the-host":    {func(*fixture.Proxy, string) string { return "" }, false},
		"for-the-name":    {func(_ *fixture.Proxy, host string) string { return host }, false},
		"for-the-mirror":  {func(nosy *fixture.Proxy, _ string) string { return nosy.Addr }, true},
		"for-a-like-name": {func(_ *fixture.Proxy, host string) string { return "evil-" + host }, false},
	} {
		r.beside(name, func(r rig) {
			nosy, good := r.proxy(fixture.ProxyOptions{Target: locked}), r.proxy()
			a := r.app(8*kib).push(locked, r.registry())
			host := r.mirrored(nosy, good)
			auth := &v1.AuthConfig{Username: fixture.User, Password: fixture.Password, ServerAddress: c.server(nosy, host)}
			r.ok(r.pull(a.at(host), auth))
			a.arrived(a.at(host))
			if got := shown(nosy, "Authorization"); (len(got) > 0) != c.mirror {
				r.Errorf("the mirror was shown %q", got)
			}
			if !c.mirror {
				r.hidden(nosy, "Authorization")
			}
		})
	}
}

// TestTokenServerInTheOpen is named by a registry with TLS, and has none itself: it gets no secret.
func TestTokenServerInTheOpen(t *testing.T) {
	r := open(t)
	tokens, err := fixture.NewTokenServer()
	r.ok(err)
	reg := r.ownRegistry(fixture.RegistryOptions{Tokens: tokens})
	plain := r.proxy(fixture.ProxyOptions{Target: reg})
	p := r.proxy(fixture.ProxyOptions{Target: reg, TLS: true, Realm: plain.URL() + "/token"})
	r.hosts(p.Addr, mirror(p.URL(), `ca = "ca.pem"`), file{"ca.pem", p.CA})
	a := r.app(8 * kib)
	a.push(reg)
	for name, auth := range map[string]*v1.AuthConfig{"password": right,
		"identity": {IdentityToken: fixture.IdentityToken}} {
		if err := r.pull(a.at(p.Addr), auth); err == nil {
			r.Errorf("%s: pulled", name)
		}
	}
	for _, asked := range plain.Requests("") {
		if asked.Header.Get("Authorization") != "" || len(asked.Form["password"])+len(asked.Form["refresh_token"]) > 0 {
			r.Errorf("a secret went out in the open: %v", asked)
		}
	}
}

// TestTokenServerThatRedirects sends on whoever asks for a token; the secret does not go along.
func TestTokenServerThatRedirects(t *testing.T) {
	r := open(t)
	tokens, err := fixture.NewTokenServer()
	r.ok(err)
	reg := r.ownRegistry(fixture.RegistryOptions{Tokens: tokens})
	thief, p := r.proxy(fixture.ProxyOptions{Target: reg}), r.proxy(fixture.ProxyOptions{Target: reg})
	p.On(fixture.Fault{Part: fixture.PartToken, Redirect: func(*http.Request) string { return thief.URL() + "/token" }})
	a := r.app(8 * kib)
	a.push(reg)
	for name, auth := range map[string]*v1.AuthConfig{"password": right,
		"identity": {IdentityToken: fixture.IdentityToken}} {
		if err := r.pull(a.at(p.Addr), auth); err == nil {
			r.Errorf("%s: pulled", name)
		}
	}
	for _, asked := range thief.Requests("") {
		if asked.Header.Get("Authorization") != "" || len(asked.Form["password"])+len(asked.Form["refresh_token"]) > 0 {
			r.Errorf("the secret went along: %v", asked)
		}
	}
}

// TestTokens opens docker-registry with tokens that it checks itself.
func TestTokens(t *testing.T) {
	r := open(t)
	tokens, err := fixture.NewTokenServer()
	r.ok(err)
	reg := r.ownRegistry(fixture.RegistryOptions{Tokens: tokens})
	secret, public := "t/"+r.unique()+":v1", "public/"+r.unique()+":v1"
	a := r.appNamed(secret, 8*kib)
	a.push(reg)
	b := r.appNamed(public, 8*kib)
	b.push(reg)
	registryToken, err := tokens.Grant("repository:" + strings.TrimSuffix(secret, ":v1") + ":pull")
	r.ok(err)
	other, err := tokens.Grant("repository:other:pull")
	r.ok(err)
	for name, c := range map[string]struct {
		app  *app
		auth *v1.AuthConfig
		code codes.Code
	}{
		"password": {a, right, codes.OK}, "wrong-password": {a, guess, codes.Unauthenticated},
		"nobody":         {a, nil, codes.Unauthenticated},
		"identity":       {a, &v1.AuthConfig{IdentityToken: fixture.IdentityToken}, codes.OK},
		"wrong-identity": {a, &v1.AuthConfig{IdentityToken: "made-up-4711"}, codes.Unauthenticated},
		"registry-token": {a, &v1.AuthConfig{RegistryToken: registryToken}, codes.OK},
		"token-of-other": {a, &v1.AuthConfig{RegistryToken: other}, codes.Unauthenticated},
		"no-token":       {a, &v1.AuthConfig{RegistryToken: "made-up-4711"}, codes.Unauthenticated},
		"public":         {b, nil, codes.OK}, "public-password": {b, right, codes.OK},
	} {
		r.sub(name, func(r rig) {
			p := r.proxy(fixture.ProxyOptions{Target: reg})
			err := r.pull(c.app.at(p.Addr), c.auth)
			if c.code == codes.OK {
				r.ok(err)
				c.app.arrived(c.app.at(p.Addr))
				r.remove(c.app.at(p.Addr))
				return
			}
			r.refused(err, c.code)
			if strings.Contains(err.Error(), "4711") {
				r.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// TestTokenThatEndsInTheMiddle breaks a download for longer than the token lives that began it.
func TestTokenThatEndsInTheMiddle(t *testing.T) {
	r := openOwn(t, patient) // the download may be broken for long
	tokens, err := fixture.NewTokenServer()
	r.ok(err)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Tokens: tokens})})
	a := r.app(mib)
	a.push(p.Target())
	l := a.layers[0]
	tokens.SetLife(3 * time.Second)
	p.On(l.on(fixture.Fault{End: fixture.EndHangup, After: 300 * kib, Times: 1}),
		l.on(fixture.Fault{If: ranged, Before: 4 * time.Second, Times: 1}))
	r.ok(r.pull(a.at(p.Addr), right))
	a.arrived(a.at(p.Addr))
	if asked := p.Requests(fixture.PartToken); len(asked) < 2 {
		r.Errorf("tokens were asked for %d times: %v", len(asked), l.asked(p))
	}
	if sent := l.sent(p); sent > l.size+64*kib {
		r.Errorf("%d bytes were sent for a layer of %d: %v", sent, l.size, l.asked(p))
	}
}
