package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// host is one registry that may serve a repository, or the place of a foreign layer.
type host struct {
	id      string   // in a Repository
	place   int      // among its hosts
	name    string   // with port, for people
	base    *url.URL // scheme, host and the root of its API
	ns      string   // the registry that it stands for, when it is a mirror
	caps    docker.HostCapabilities
	header  http.Header // for this host alone
	client  *http.Client
	outside *http.Client    // for where it redirects to
	bare    *http.Transport // below client, which may be wrapped
	tokens  *tokenRoutes    // nil for a foreign host
	gate    *gate
	away    *awayGates // for where it redirects to; nil for a foreign host
	foreign bool
	secrets []string // never to be seen in an error
	clock   clock
	stall   time.Duration // as in Options

	firstByte     time.Duration // as in Options, or its own
	httpRedirects bool          // from https to http are followed
	lostHosts     *lostHosts    // of the Client; nil for a foreign host

	mu    sync.Mutex // guards what follows
	until time.Time  // it asked not to be asked before
	down  bool       // it could not be reached, or did not go on
}

// isDown says that others are asked before the host.
func (h *host) isDown() bool {
	h.mu.Lock()
	down := h.down
	h.mu.Unlock()
	return down || h.lostHosts.has(h.origin())
}

// setDown puts the host behind the others for the rest of the pull; when lost, because no connection to it could
// be made, also by other pulls for a while.
func (h *host) setDown(lost bool) {
	h.mu.Lock()
	h.down = true
	h.mu.Unlock()
	if lost {
		h.lostHosts.add(h.origin())
	}
}

// claim says that the host is going to be asked.
func (h *host) claim() { h.lostHosts.claim(h.origin()) }

// reached says that the host has done what it was asked.
func (h *host) reached() {
	h.mu.Lock()
	h.down = false
	h.mu.Unlock()
	h.lostHosts.remove(h.origin())
}

// origin is where connections to the host go.
func (h *host) origin() string { return h.base.Scheme + "://" + h.base.Host }

// rest asks that the host be left alone until then.
func (h *host) rest(then time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if then.After(h.until) {
		h.until = then
	}
}

func (h *host) rested() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

// configure reads what is configured for the references of home.
func (c *Client) configure(ctx context.Context, home string, who identity) ([]*host, error) {
	var wrong complaint
	bare := map[*http.Client]*http.Transport{}
	o := config.HostOptions{UpdateClient: func(cl *http.Client) error {
		if t, ok := cl.Transport.(*http.Transport); ok {
			c.tune(t)
			bare[cl] = t
		}
		return nil
	}}
	if c.options.ConfigDir != "" {
		o.HostDir = config.HostDirFromRoot(c.options.ConfigDir)
	}
	own, err := readOwnKeys(home, o.HostDir)
	if err != nil {
		return nil, &Error{errdefs.ErrUnknown, "registry configuration", c.name(home, o.HostDir) + err.Error()}
	}
	found, err := config.ConfigureHosts(log.WithLogger(ctx, wrong.logger()), o)(home)
	if err == nil {
		err = wrong.err
	}
	if err != nil {
		return nil, &Error{errdefs.ErrUnknown, "registry configuration", c.name(home, o.HostDir) + err.Error()}
	}
	if len(found) == 0 {
		return nil, &Error{errdefs.ErrUnknown, "registry configuration", c.name(home, o.HostDir) + "it names no host"}
	}
	hosts := make([]*host, len(found))
	for i, f := range found {
		if hosts[i], err = c.host(f, bare[f.Client], home, who); err != nil {
			return nil, &Error{errdefs.ErrUnknown, "registry configuration", c.name(home, o.HostDir) + err.Error()}
		}
		hosts[i].id, hosts[i].place = fmt.Sprint(i), i
		own.apply(hosts[i], i == len(found)-1)
	}
	return once(hosts), nil
}

// once leaves the server out when it is one of the hosts before it: many files repeat it there to say how to reach it.
func once(hosts []*host) []*host {
	last := len(hosts) - 1
	for _, h := range hosts[:last] {
		if *h.base == *hosts[last].base && h.caps.Has(hosts[last].caps&asked) {
			return hosts[:last]
		}
	}
	return hosts
}

// asked is what Berth may want of a host.
const asked = docker.HostCapabilityPull | docker.HostCapabilityResolve

// name says which directory the configuration of a host comes from, as the beginning of a text.
func (c *Client) name(home string, find func(string) (string, error)) string {
	if find == nil {
		return ""
	}
	if dir, err := find(home); err == nil {
		return filepath.Join(dir, "hosts.toml") + ": "
	}
	return c.options.ConfigDir + ": "
}

func (c *Client) host(f docker.RegistryHost, bare *http.Transport, home string, who identity) (*host, error) {
	base := &url.URL{Scheme: f.Scheme, Host: f.Host, Path: f.Path}
	if f.Host == "" || f.Scheme != "http" && f.Scheme != "https" || base.Hostname() == "" {
		return nil, fmt.Errorf("%q is no address of a registry: write https://host[:port]", base)
	}
	h := &host{
		name: f.Host, base: base, caps: f.Capabilities, header: f.Header, secrets: who.secrets(), clock: c.options.clock,
		stall: c.options.Stall, firstByte: c.options.FirstByte, lostHosts: &c.lost,
	}
	if canonicalHost(f.Host) != canonicalHost(home) {
		h.ns = home
	}
	outside := anonymous(bare)
	h.client, h.outside = c.noRedirects(f.Client.Transport), c.noRedirects(outside)
	h.bare, h.tokens = bare, c.tokenRoutes(bare)
	h.away = &awayGates{tokens: h.tokens, stall: h.stall, secrets: h.secrets, gates: map[string]*gate{}}
	if outside != bare {
		h.away.tokens = c.tokenRoutes(outside)
	}
	known := who.mayGo(f.Host, home)
	credentials := func(string) (string, string, error) {
		if !known {
			return "", "", nil
		}
		return who.user, who.secret, nil
	}
	tokens := h.tokens.client(base, f.Header, h.secrets, h.stall)
	h.gate = newGate(known, h.secrets, func() docker.Authorizer {
		if known && who.auth.RegistryToken != "" {
			return bearer(who.auth.RegistryToken)
		}
		return docker.NewDockerAuthorizer(docker.WithAuthClient(tokens), docker.WithAuthCreds(credentials))
	})
	return h, nil
}

// anonymous is t without the client certificate, which is the registry's and its token server's to see.
func anonymous(t *http.Transport) *http.Transport {
	if t.TLSClientConfig == nil || len(t.TLSClientConfig.Certificates) == 0 {
		return t
	}
	t = t.Clone()
	t.TLSClientConfig.Certificates = nil
	return t
}

// tune makes a transport fit for large transfers over several connections.
func (c *Client) tune(t *http.Transport) {
	t.ResponseHeaderTimeout = 0 // exchange has a limit of its own for each sort of request
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 64, 32
	t.DisableCompression = true
	t.ReadBufferSize = 64 << 10
	t.MaxResponseHeaderBytes = 1 << 20
}

// noRedirects makes a client that hands redirects to its caller.
func (c *Client) noRedirects(t http.RoundTripper) *http.Client {
	if c.options.wrap != nil {
		t = c.options.wrap(t)
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// complaint keeps the first error that the library logs and goes on from: a hosts.toml that it cannot read, and
// ignores.
type complaint struct{ err error }

func (c *complaint) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (c *complaint) Fire(e *logrus.Entry) error {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %v", e.Message, e.Data[logrus.ErrorKey])
	}
	return nil
}

func (c *complaint) logger() *logrus.Entry {
	l := &logrus.Logger{Out: io.Discard, Formatter: &logrus.TextFormatter{}, Level: logrus.ErrorLevel,
		Hooks: logrus.LevelHooks{}}
	l.AddHook(c)
	return logrus.NewEntry(l)
}
