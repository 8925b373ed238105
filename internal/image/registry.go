package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
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
		return "", "", errorf(InvalidArgument, "registry credentials: auth is not base64")
	}
	user, secret, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", "", errorf(InvalidArgument, "registry credentials: auth holds no user:password")
	}
	return user, strings.Trim(secret, "\x00"), nil
}

// source is where the content of an image comes from.
type source interface {
	open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
}

// registry is a source for one reference and one caller's credentials.
type registry struct {
	ref      Reference
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
	mu       sync.Mutex // guards what follows
	clients  []*http.Client
}

// quiet keeps the client library from logging: what it finds comes back in its errors.
var quiet = logrus.NewEntry(&logrus.Logger{Out: io.Discard, Formatter: &logrus.TextFormatter{}, Level: logrus.PanicLevel})

// complaint keeps the first error that the library logs and goes on from: a hosts.toml that it cannot read, and ignores.
type complaint struct{ err error }

func (c *complaint) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (c *complaint) Fire(e *logrus.Entry) error {
	if c.err == nil {
		c.err = errorf(Internal, "registry configuration: %s: %v", e.Message, e.Data[logrus.ErrorKey])
	}
	return nil
}

func (c *complaint) logger() *logrus.Entry {
	l := &logrus.Logger{Out: io.Discard, Formatter: &logrus.TextFormatter{}, Level: logrus.ErrorLevel, Hooks: logrus.LevelHooks{}}
	l.AddHook(c)
	return logrus.NewEntry(l)
}

const headerTimeout = 60 * time.Second

// connect prepares talking to the registries of ref; it sends nothing yet.
func (s *Store) connect(ctx context.Context, ref Reference, auth *Auth) (*registry, error) {
	user, secret, err := auth.credentials()
	if err != nil {
		return nil, err
	}
	r := &registry{ref: ref}
	var wrong complaint
	ctx = log.WithLogger(ctx, wrong.logger())
	hosts := config.ConfigureHosts(ctx, config.HostOptions{
		HostDir:      s.hostDir(),
		UpdateClient: r.tune,
		Credentials: func(host string) (string, string, error) {
			if !r.mayHave(auth, host) {
				return "", "", nil
			}
			return user, secret, nil
		},
	})
	r.resolver = docker.NewResolver(docker.ResolverOptions{Hosts: r.withToken(hosts, auth), Headers: http.Header{"User-Agent": {"berth"}}})
	if r.fetcher, err = r.resolver.Fetcher(ctx, ref.String()); err != nil {
		return nil, fmt.Errorf("registry configuration: %w", err)
	}
	if wrong.err != nil {
		return nil, wrong.err
	}
	return r, nil
}

// hostDir finds the directory of a host, or of `_default`; nil when there is no configuration.
func (s *Store) hostDir() func(string) (string, error) {
	if s.cfg.RegistryConfigDir == "" {
		return nil
	}
	return config.HostDirFromRoot(s.cfg.RegistryConfigDir)
}

// tune bounds how long a registry may keep silent before it answers, and keeps the client for close.
func (r *registry) tune(c *http.Client) error {
	if t, ok := c.Transport.(*http.Transport); ok {
		t.ResponseHeaderTimeout = headerTimeout
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients = append(r.clients, c)
	return nil
}

// close lets go of the connections.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.clients {
		c.CloseIdleConnections()
	}
}

// mayHave says whether the credentials are for host: the one they name, else the one the reference names. A mirror gets
// none unless they name it.
func (r *registry) mayHave(auth *Auth, host string) bool {
	if auth == nil {
		return false
	}
	want := r.ref.Host()
	if auth.ServerAddress != "" {
		want = hostOf(auth.ServerAddress)
	}
	return canonicalHost(host) == canonicalHost(want)
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

// withToken sends a registry token to the hosts that may have it.
func (r *registry) withToken(hosts docker.RegistryHosts, auth *Auth) docker.RegistryHosts {
	if auth == nil || auth.RegistryToken == "" {
		return hosts
	}
	return func(name string) ([]docker.RegistryHost, error) {
		found, err := hosts(name)
		for i := range found {
			if r.mayHave(auth, found[i].Host) {
				found[i].Authorizer = bearer(auth.RegistryToken)
			}
		}
		return found, err
	}
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

// resolve asks the registry, with the caller's credentials, what the reference names.
func (r *registry) resolve(ctx context.Context) (ocispec.Descriptor, error) {
	_, desc, err := r.resolver.Resolve(log.WithLogger(ctx, quiet), r.ref.String())
	if err != nil {
		return desc, fmt.Errorf("resolve: %w", err)
	}
	return desc, nil
}

func (r *registry) open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := r.fetcher.Fetch(log.WithLogger(ctx, quiet), desc)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	return rc, nil
}

var errStalled = errors.New("the registry sent nothing for a minute")

// stallReader gives up on a source that sends nothing for a while. Only the time within Read counts.
type stallReader struct {
	r      io.Reader
	limit  time.Duration
	cancel context.CancelCauseFunc
	ctx    context.Context
}

func (s *stallReader) Read(p []byte) (int, error) {
	t := time.AfterFunc(s.limit, func() { s.cancel(errorf(Unavailable, "%w", errStalled)) })
	n, err := s.r.Read(p)
	t.Stop()
	if err != nil && err != io.EOF && s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return n, err
}
