package remote

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Auth is what a caller may present to a registry, as CRI's AuthConfig has it. All empty is anonymous.
type Auth struct {
	Username, Password string
	Auth               string // base64 of username:password
	ServerAddress      string // the host the credentials are for; the reference's own when empty
	IdentityToken      string // to be exchanged for an access token
	RegistryToken      string // a bearer token to be sent as it is
}

// credentials returns user name and secret; an identity token is a secret without a name.
func (a *Auth) credentials() (user, secret string, err error) {
	switch {
	case a == nil:
		return "", "", nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Username != "" || a.Password != "":
		return a.Username, a.Password, nil
	case a.Auth == "":
		return "", "", nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Auth))
	if err != nil {
		return "", "", &Error{errdefs.ErrInvalidArgument, "registry credentials", "auth is not base64"}
	}
	user, secret, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", "", &Error{errdefs.ErrInvalidArgument, "registry credentials", "auth holds no user:password"}
	}
	return user, strings.Trim(secret, "\x00"), nil
}

// identity is a caller's credentials, taken apart.
type identity struct {
	auth         *Auth
	user, secret string
}

// secrets lists what must not be seen.
func (i identity) secrets() []string {
	if i.auth == nil {
		return nil
	}
	both := base64.StdEncoding.EncodeToString([]byte(i.user + ":" + i.secret))
	return []string{i.auth.RegistryToken, strings.TrimSpace(i.auth.Auth), both, i.secret}
}

// mayGo reports whether the credentials are for name, the host of one registry among those that serve the references of
// the host home. They are for the host they name, else for home. A mirror gets none unless they name it.
func (i identity) mayGo(name, home string) bool {
	if i.auth == nil {
		return false
	}
	want := home
	if i.auth.ServerAddress != "" {
		want = hostOf(i.auth.ServerAddress)
	}
	return canonicalHost(name) == canonicalHost(want)
}

// hostOf is the host of an address that may be a URL or bare.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	host, _, _ := strings.Cut(address, "/")
	return host
}

// canonicalHost takes the names of Docker Hub for one, and a port that goes without saying away.
func canonicalHost(host string) string {
	host = strings.ToLower(strings.TrimSuffix(host, ":443"))
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// bearer is a token that is sent as it is. A registry that refuses it gets no second one.
type bearer string

func (b bearer) Authorize(_ context.Context, req *http.Request) error {
	req.Header.Set("Authorization", "Bearer "+string(b))
	return nil
}

func (b bearer) AddResponses(context.Context, []*http.Response) error {
	return fmt.Errorf("the registry refuses the registry token: %w", docker.ErrInvalidAuthorization)
}

// gate signs the requests to one host. Its lock is a channel, so that who waits for another's token can give up.
type gate struct {
	fresh   func() docker.Authorizer // one that knows no challenge yet
	known   bool                     // there are credentials
	secrets []string
	lock    chan struct{} // holds one element; guards what follows
	now     docker.Authorizer
	age     int // of now: which challenge it answers
}

func newGate(known bool, secrets []string, fresh func() docker.Authorizer) *gate {
	g := &gate{fresh: fresh, known: known, secrets: secrets, lock: make(chan struct{}, 1), now: fresh()}
	g.lock <- struct{}{}
	return g
}

func (g *gate) enter(ctx context.Context) error {
	select {
	case <-g.lock:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) leave() { g.lock <- struct{}{} }

// sign adds what the host asked for so far, fetching a token if there is none or it ran out. An answer to the request
// that refuses it goes to challenge, with age.
func (g *gate) sign(ctx context.Context, req *http.Request) (age int, f *fault) {
	if err := g.enter(ctx); err != nil {
		return 0, &fault{kind: crierrors.ErrRegistryUnavailable, text: "interrupted"}
	}
	defer g.leave()
	if err := g.now.Authorize(ctx, req); err != nil {
		// The library remembers a failure for good: begin anew.
		g.now, g.age = g.fresh(), g.age+1
		return 0, faultOfToken(err, g.secrets)
	}
	return g.age, nil
}

// challenge takes the challenge of a response with the status 401 to a request signed at age. The request may be made
// again when it returns nil.
func (g *gate) challenge(ctx context.Context, resp *http.Response, age int) *fault {
	if err := g.enter(ctx); err != nil {
		return &fault{kind: crierrors.ErrRegistryUnavailable, text: "interrupted"}
	}
	defer g.leave()
	if age != g.age {
		return nil // another request brought the new token
	}
	if f := g.checkRealm(resp); f != nil {
		return f
	}
	next := g.fresh()
	if err := next.AddResponses(ctx, []*http.Response{resp}); err != nil {
		return &fault{kind: errdefs.ErrUnauthenticated, text: "401 Unauthorized: " + err.Error()}
	}
	g.now, g.age = next, g.age+1
	return nil
}

// checkRealm refuses to send credentials for a host that has TLS to a token server that has not.
func (g *gate) checkRealm(resp *http.Response) *fault {
	if resp.TLS == nil || !g.known {
		return nil
	}
	for _, c := range auth.ParseAuthHeader(resp.Header) {
		if c.Scheme != auth.BearerAuth {
			continue
		}
		if u, err := url.Parse(c.Parameters["realm"]); err != nil || u.Scheme != "https" {
			return &fault{kind: errdefs.ErrUnauthenticated,
				text: "its token server has no TLS, and no credentials are sent there"}
		}
	}
	return nil
}

// faultOfToken says why there is no token. The registry is there, whatever became of its token server: it is not lost
// to other pulls, of which one may need no token, or one of another server.
func faultOfToken(err error, secrets []string) *fault {
	var status remoteerrors.ErrUnexpectedStatus
	var already *faultError
	if errors.As(err, &already) {
		return already.fault
	}
	if !errors.As(err, &status) {
		f := faultOfError(err)
		f.lost, f.text = false, "fetch a token: "+f.text
		return f
	}
	f := faultOfStatus(status.StatusCode)
	server := "token server"
	if u, err := url.Parse(status.RequestURL); err == nil {
		server += " " + u.Host
	}
	f.text = fmt.Sprintf("%s: %s%s", server, status.Status, complaintIn(status.Body, secrets))
	if f.kind == errdefs.ErrNotFound || f.kind == errdefs.ErrUnknown {
		f.kind = errdefs.ErrUnauthenticated
	}
	return f
}
