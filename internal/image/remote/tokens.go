package remote

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// tokenRoutes lead to the token servers of a registry. The registry's answer says where one is, to whoever asks, so
// one on another host must not be the node itself or a cloud's metadata: what such a service answers could be a token,
// which the registry would be sent.
type tokenRoutes struct {
	near  http.RoundTripper // to the registry's own host, from a registry of the node itself, and through proxies
	far   *http.Transport   // to other hosts, whose addresses are judged
	wraps http.RoundTripper // far
	proxy func(*http.Request) (*url.URL, error)
	judge func(netip.Addr) *fault
}

// tokenRoutes makes those that use the certificates and authorities of bare.
func (c *Client) tokenRoutes(bare *http.Transport) *tokenRoutes {
	const who = "registry elsewhere"
	far := c.judged(bare.Clone(), who)
	return &tokenRoutes{
		near: c.noRedirects(bare).Transport, far: far, wraps: c.noRedirects(far).Transport, proxy: bare.Proxy,
		judge: func(a netip.Addr) *fault { return c.judge(a, who) },
	}
}

// close ends the connections to other hosts that are idle.
func (r *tokenRoutes) close() { r.far.CloseIdleConnections() }

// to chooses the route of a request for a token of the registry.
func (r *tokenRoutes) to(registry *url.URL, req *http.Request) (http.RoundTripper, *fault) {
	if strings.EqualFold(registry.Hostname(), req.URL.Hostname()) || r.ofTheNode(registry) {
		return r.near, nil
	}
	if r.proxy == nil {
		return r.wraps, nil
	}
	switch proxy, err := r.proxy(req); {
	case err != nil:
		return nil, faultOfError(err)
	case proxy == nil:
		return r.wraps, nil
	}
	// The proxy makes the connection, and of a name only the proxy knows the address.
	if a, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		return r.near, r.judge(a)
	}
	return r.near, nil
}

// ofTheNode reports whether a registry is one of the node itself by how it is called: a cache on loopback, say.
func (r *tokenRoutes) ofTheNode(registry *url.URL) bool {
	a, err := netip.ParseAddr(registry.Hostname())
	return strings.EqualFold(registry.Hostname(), "localhost") || err == nil && r.judge(a) != nil
}

const mostToken = 1 << 20

// client fetches tokens for a registry at home, for each of which there is so much time. It sends the registry's own
// headers to home alone, takes no secret along on a redirect to elsewhere, and reads no answer without end.
func (r *tokenRoutes) client(
	home *url.URL, header http.Header, secrets []string, within time.Duration,
) *http.Client {
	return &http.Client{
		Timeout:   within,
		Transport: tokenTransport{r, home, header, secrets},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			from := via[len(via)-1]
			switch {
			case len(via) >= mostRedirects:
				return errors.New("too many redirects")
			case from.URL.Scheme == "https" && req.URL.Scheme != "https":
				return errors.New("the token server redirects to a place without TLS")
			case !sameOrigin(via[0].URL, req.URL) && (via[0].Header.Get("Authorization") != "" || via[0].Body != nil):
				return errors.New("the token server redirects to another host, and no credentials are sent there")
			}
			return nil
		},
	}
}

type tokenTransport struct {
	routes   *tokenRoutes
	registry *url.URL
	header   http.Header
	secrets  []string
}

func (t tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if sameOrigin(t.registry, req.URL) {
		req = req.Clone(req.Context())
		addHeader(req.Header, t.header)
	}
	route, f := t.routes.to(t.registry, req)
	if f == nil {
		return t.ask(route, req)
	}
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, &faultError{f}
}

func (t tokenTransport) ask(route http.RoundTripper, req *http.Request) (*http.Response, error) {
	resp, err := route.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if faultOfStatus(resp.StatusCode).again { // the library would lose when to come again
		defer resp.Body.Close()
		f := faultOfAnswer(resp, time.Now(), t.secrets)
		f.text = "token server " + req.URL.Host + ": " + f.text
		return nil, &faultError{f}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, mostToken), resp.Body}
	return resp, nil
}
