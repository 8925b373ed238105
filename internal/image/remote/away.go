package remote

import (
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
)

// awayGates are those of the registries that a host redirects to, by their origins. Many registries want a token even
// for what everybody may read. These gates know no credentials, and what one is given is sent to its own origin alone.
// A nil awayGates has none, and makes none.
type awayGates struct {
	tokens  *tokenRoutes // show no certificate
	stall   time.Duration
	secrets []string // of the host; never to be seen in an error

	mu    sync.Mutex // guards gates
	gates map[string]*gate
}

// mostAwayGates bounds how many there are: the host may redirect each request to another place.
const mostAwayGates = 16

// of returns the gate of u's origin; nil as long as that has not asked for a token.
func (a *awayGates) of(u *url.URL) *gate {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gates[originOf(u)]
}

// asked returns the gate that takes the challenge of an answer of the status 401; nil when that does not ask for a
// token, as a store does not.
func (a *awayGates) asked(resp *http.Response) *gate {
	if a == nil || !asksForToken(resp.Header) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	origin := originOf(resp.Request.URL)
	g := a.gates[origin]
	if g == nil && len(a.gates) < mostAwayGates {
		g = a.create(resp.Request.URL)
		a.gates[origin] = g
	}
	return g
}

func (a *awayGates) create(u *url.URL) *gate {
	tokens := a.tokens.client(u, nil, a.secrets, a.stall)
	return newGate(false, a.secrets, func() docker.Authorizer {
		return docker.NewDockerAuthorizer(docker.WithAuthClient(tokens))
	})
}

// asksForToken reports whether an answer says where a token is to be had.
func asksForToken(answer http.Header) bool {
	for _, c := range auth.ParseAuthHeader(answer) {
		if c.Scheme == auth.BearerAuth && c.Parameters["realm"] != "" {
			return true
		}
	}
	return false
}
