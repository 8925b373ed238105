package remote

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Options configure a Client. Connections, Stall, FirstByte and Buffer are required.
type Options struct {
	// ConfigDir holds <host>/hosts.toml; empty for none. It is read anew for every Repository.
	ConfigDir string
	// Connections is how many connections one blob may use at once.
	Connections int
	// Stall is how long a host may take to send its next 4 KiB, or to begin its answer about a manifest.
	Stall time.Duration
	// FirstByte is how long a host may take to begin to send a blob: a cache may have to fetch all of it before.
	FirstByte time.Duration
	// ForeignURLs allows layers of a foreign type to be fetched from the urls of their descriptor when no registry has
	// them.
	ForeignURLs bool
	// Buffer bounds the bytes that all blobs together fetch ahead of their readers.
	Buffer int64

	clock clock
	// dialable says why a stranger must not lead to an address; forbidden when nil.
	dialable func(netip.Addr) error
	// wrap stands between the package and the network, for tests.
	wrap func(http.RoundTripper) http.RoundTripper
	// sizes of requests, for tests.
	sizes sizes
}

// sizes say how a blob is cut into requests, in bytes.
type sizes struct {
	large   int64 // as much must be left of a blob for more connections than one
	segment int64 // fetched ahead by one connection
	span    int64 // of the reader's own connection once others fetch ahead

	probe time.Duration // how long more connections are tried before they are relied on; 0 is not at all
}

const (
	largestSegment  = 4 << 20
	smallestSegment = 256 << 10
)

// complete fills in what only tests set.
func (o Options) complete() Options {
	if o.clock == nil {
		o.clock = realClock{}
	}
	if o.dialable == nil {
		o.dialable = forbidden
	}
	if o.sizes == (sizes{}) {
		segment := max(smallestSegment, min(largestSegment, o.Buffer/8))
		o.sizes = sizes{large: 4 << 20, segment: segment, span: 16 << 20, probe: time.Second}
	}
	return o
}

// Client is what all pulls share: the configuration and the memory for what is fetched ahead. All methods may be called
// at once from anywhere.
type Client struct {
	options  Options
	buffers  buffers
	probes   parallelismProbes
	lost     lostHosts
	received atomic.Int64 // bytes, by readers
}

// New makes a Client. It reads nothing and sends nothing.
func New(o Options) *Client {
	o = o.complete()
	return &Client{
		options: o, buffers: buffers{size: o.sizes.segment, left: o.Buffer},
		lost: lostHosts{clock: o.clock, until: map[string]time.Time{}},
	}
}

// Repository is one reference, read with one caller's credentials.
type Repository struct {
	client  *Client
	ref     reference.Named
	hosts   []*host
	foreign foreignClient // for the urls of foreign layers
	answers answers       // to Resolve
	secrets []string      // never to be seen in an error

	mu         sync.Mutex // guards what follows
	open       int        // blobs
	closed     bool
	mismatched map[digest.Digest][]string // ids of hosts that served other content than the digest promises
	suspected  map[digest.Digest][]string // ids of hosts of which one has served such content
}

// Repository prepares reading ref from its hosts, as they are configured now. It sends nothing yet. The caller closes
// it. A configuration that cannot be read is an Error of the kind ErrUnknown that names the file; credentials that make
// no sense are one of the kind ErrInvalidArgument.
func (c *Client) Repository(ctx context.Context, ref reference.Named, auth *Auth) (*Repository, error) {
	user, secret, err := auth.credentials()
	if err != nil {
		return nil, err
	}
	who := identity{auth, user, secret}
	r := &Repository{
		client: c, ref: ref, secrets: who.secrets(),
		mismatched: map[digest.Digest][]string{}, suspected: map[digest.Digest][]string{},
	}
	if r.hosts, err = c.configure(ctx, reference.Domain(ref), who); err != nil {
		return nil, err
	}
	return r, nil
}

// Close lets go of the connections: of idle ones now, of those in use when the last open Blob is closed. A Repository
// that was closed can still be read from, for a pull that others joined goes on when the first caller has left.
func (r *Repository) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.releaseLocked()
}

func (r *Repository) releaseLocked() {
	if !r.closed || r.open > 0 {
		return
	}
	for _, h := range r.hosts {
		h.bare.CloseIdleConnections()
		h.outside.CloseIdleConnections()
		h.tokens.close()
		h.away.tokens.close()
	}
	r.foreign.close()
}

// enter and leave count the blobs that are open.
func (r *Repository) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
}

func (r *Repository) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.releaseLocked()
}

// path is the repository's name below its host.
func (r *Repository) path() string { return reference.Path(r.ref) }

// mismatches returns the ids of the hosts that have served other content than d promises, and of those of which one
// has.
func (r *Repository) mismatches(d digest.Digest) (mismatched, suspected []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mismatched[d], r.suspected[d]
}

// noteMismatch records that the hosts served, alone or together, other content than d promises. It reports whether any
// of all hosts is left to ask.
func (r *Repository) noteMismatch(d digest.Digest, served, all []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var fresh []string
	for _, id := range served[:max(0, len(served)-1)] {
		if !slices.Contains(r.suspected[d], id) {
			fresh = append(fresh, id)
		}
	}
	if len(served) > 1 && len(fresh) > 0 {
		// One of them has. The last in order is the registry itself, or nearest to it: it is asked alone first.
		r.suspected[d] = append(r.suspected[d], fresh...)
		return true
	}
	r.mismatched[d] = append(r.mismatched[d], served...)
	left := func(id string) bool { return !slices.Contains(r.mismatched[d], id) }
	return len(served) > 0 && slices.ContainsFunc(all, left)
}

// mismatchedNames lists the hosts that have served other content than desc promises.
func (r *Repository) mismatchedNames(desc ocispec.Descriptor) (names []string) {
	hosts := slices.Concat(r.hosts, r.elsewhere(desc))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range hosts {
		if slices.Contains(r.mismatched[desc.Digest], h.id) {
			names = append(names, h.name)
		}
	}
	return names
}
