package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/limit"
)

// elsewhere are the places that the descriptor of a foreign layer names besides the registries. They get no
// credentials. There are none for other content, and unless Options allow it: whoever writes a manifest would choose
// what the node connects to.
func (r *Repository) elsewhere(desc ocispec.Descriptor) []*host {
	o := &r.client.options
	if !o.ForeignURLs {
		return nil
	}
	var out []*host
	for _, u := range foreignURLs(desc) {
		client := r.foreign.get(r.client)
		out = append(out, &host{
			id: u.String(), place: len(r.hosts) + len(out), name: u.Host, base: u, foreign: true,
			caps: docker.HostCapabilityPull, client: client, outside: client,
			clock: o.clock, stall: o.Stall, firstByte: o.FirstByte,
		})
	}
	return out
}

// foreignURLs are the usable urls of a foreign layer, as many as are asked: a manifest may name any number.
func foreignURLs(desc ocispec.Descriptor) []*url.URL {
	if !images.IsNonDistributable(desc.MediaType) {
		return nil
	}
	var out []*url.URL
	for _, text := range desc.URLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		if limit.ForeignPlaces.Check(int64(len(out)+1)) != nil {
			break
		}
		out = append(out, u)
	}
	return out
}

// hint adds to the error of a foreign layer that no registry has where it would be, unless it was asked for there.
func hint(err error, desc ocispec.Descriptor, asked bool) error {
	var e *Error
	if asked || !errors.As(err, &e) || e.Kind != errdefs.ErrNotFound {
		return err
	}
	var places []string
	for _, u := range foreignURLs(desc) {
		places = append(places, u.Host)
	}
	if len(places) == 0 {
		return err
	}
	slices.Sort(places)
	return &Error{e.Kind, e.Op, fmt.Sprintf("%s; it is a foreign layer, which the manifest says is at %q: "+
		"images.foreign_layer_urls = true has it fetched from there", e.Text, slices.Compact(places))}
}

// foreignClient reaches hosts that are not registries, and knows nothing of their configuration. It uses no proxy: the
// addresses that it connects to must be those that it judges.
type foreignClient struct {
	mu     sync.Mutex // guards client
	client *http.Client
}

// get makes the client when it is needed first.
func (f *foreignClient) get(c *Client) *http.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.client == nil {
		t := docker.DefaultHTTPTransport(nil)
		c.tune(t)
		f.client = c.noRedirects(c.judged(t, "manifest"))
	}
	return f.client
}

// close ends the connections that are idle.
func (f *foreignClient) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.client != nil {
		f.client.CloseIdleConnections()
	}
}

// judged has t connect to no address that who, a manifest or a registry elsewhere, must not choose for the node. Each
// connection is judged by the address that its name was resolved to, so a name that leads to another address the
// second time and a redirect are judged as well. t uses no proxy from then on, whose address would be judged.
func (c *Client) judged(t *http.Transport, who string) *http.Transport {
	t.Proxy = nil
	t.DialContext = (&net.Dialer{
		Timeout: 30 * time.Second, FallbackDelay: 300 * time.Millisecond,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if f := c.judge(to.Addr(), who); f != nil {
				return &faultError{f}
			}
			return nil
		},
	}).DialContext
	return t
}

// judge says why who must not lead to an address.
func (c *Client) judge(a netip.Addr, who string) *fault {
	if err := c.options.dialable(a); err != nil {
		return &fault{kind: errdefs.ErrPermissionDenied, text: fmt.Sprintf("%v, to which no %s may lead", err, who)}
	}
	return nil
}

// metadata are addresses at which clouds tell a machine its secrets, beside the link-local ones.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("fd20:ce::254"),    // Google
}

// translated are the prefixes below which an IPv4 address stands in an IPv6 one, with the byte at which it begins.
var translated = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"):   12, // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"): 12, // NAT64 of a site; with the usual layout
	netip.MustParsePrefix("2002::/16"):      2,  // 6to4
	netip.MustParsePrefix("::/96"):          12, // IPv4-compatible
}

var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// forbidden says why a stranger must not lead to an address: it is the node's own, its link's, or a cloud's for
// secrets.
func forbidden(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() || thisNetwork.Contains(a) ||
		slices.Contains(metadata, a) {
		return fmt.Errorf("%s is an address of the node itself, of its link or of a cloud's metadata", a)
	}
	for prefix, at := range translated {
		if prefix.Contains(a) {
			raw := a.As16()
			return forbidden(netip.AddrFrom4([4]byte(raw[at : at+4])))
		}
	}
	return nil
}
