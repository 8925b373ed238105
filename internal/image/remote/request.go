package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// request is what is wanted of any host.
type request struct {
	method string
	path   string // below the API's root: <repository>/blobs/<digest>
	scope  string // of the token that the host may want for it
	accept string
	from   int64 // the first byte wanted
	to     int64 // the byte behind the last one wanted
	ranged bool  // ask for from to to; else for everything
	strict bool  // everything instead is of no use
	proven bool  // a digest proves what comes

	manifest bool          // or an index, no blob
	answerIn time.Duration // for the answer to begin; the host's stall limit when 0
}

const mostRedirects = 10

// target remembers where a host redirected a request to, so that the next range of a blob goes there at once.
type target struct {
	mu  sync.Mutex // guards what follows
	url *url.URL
}

func (t *target) get() *url.URL {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.url
}

func (t *target) set(u *url.URL) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.url = u
}

// forget drops u, unless another request found a better place already.
func (t *target) forget(u *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.url == u {
		t.url = nil
	}
}

// ask sends a request to the host and follows where it leads. An answer that is no success is a fault.
func (h *host) ask(ctx context.Context, r request, memo *target) (*http.Response, *fault) {
	if u := memo.get(); u != nil {
		resp, f := h.follow(ctx, r, u, true, nil)
		if f == nil || f.again && f.after > 0 {
			return resp, f
		}
		memo.forget(u) // refused, or gone: the registry may know a better place
		if ctx.Err() != nil {
			return nil, f
		}
	}
	return h.follow(ctx, r, h.url(r.path), h.foreign, memo)
}

// url is where the host has p.
func (h *host) url(p string) *url.URL {
	if h.foreign {
		return h.base
	}
	u := *h.base
	u.Path = path.Join("/", u.Path, p)
	if h.ns != "" {
		u.RawQuery = url.Values{"ns": {h.ns}}.Encode()
	}
	return &u
}

// follow sends a request to u and on to where it is redirected. From the first place that is not the host's own (away),
// it carries nothing that was meant for the host: where a registry there wants a token, it is one without credentials.
func (h *host) follow(ctx context.Context, r request, u *url.URL, away bool, memo *target) (*http.Response, *fault) {
	for range mostRedirects {
		resp, f := h.send(ctx, r, u, away)
		if f != nil {
			return nil, f
		}
		next, f := h.redirection(resp, r)
		if f != nil {
			drop(resp)
			return nil, f
		}
		if next == nil {
			return h.judge(resp, u, away, memo)
		}
		drop(resp)
		away = away || !sameOrigin(resp.Request.URL, next)
		u = next
	}
	return nil, &fault{kind: errdefs.ErrUnknown, text: "too many redirects"}
}

func (h *host) judge(resp *http.Response, u *url.URL, away bool, memo *target) (*http.Response, *fault) {
	if resp.StatusCode/100 == 2 {
		if away {
			memo.set(u)
		}
		return resp, nil
	}
	defer drop(resp)
	return nil, h.from(u, faultOfAnswer(resp, time.Now(), h.secrets))
}

// from adds to a fault of u where that is, when the host has redirected there.
func (h *host) from(u *url.URL, f *fault) *fault {
	if u.Host != h.name {
		f.text = "redirects to " + u.Host + ": " + f.text
	}
	return f
}

// send makes one exchange, or as many as it takes to be authorized: a token may run out again before it is used, a
// password that was refused stays so.
func (h *host) send(ctx context.Context, r request, u *url.URL, away bool) (*http.Response, *fault) {
	for try := 0; ; try++ {
		req, err := r.build(ctx, u)
		if err != nil {
			return nil, &fault{kind: errdefs.ErrUnknown, text: plainText(err)}
		}
		client, g, scoped, age := h.outside, h.away.of(u), ctx, 0
		if !away {
			client, g, scoped = h.client, h.gate, docker.WithScope(ctx, r.scope)
			addHeader(req.Header, h.header)
		}
		if g != nil {
			var f *fault
			if age, f = g.sign(scoped, req); f != nil {
				return nil, h.from(u, f)
			}
		}
		resp, err := h.exchange(client, req, r.answerIn)
		if err != nil {
			return nil, h.lost(ctx, err, u)
		}
		if resp.StatusCode/100 != 2 {
			resp.Body = h.brief(resp.Body)
		}
		sent := req.Header.Get("Authorization")
		if resp.StatusCode != http.StatusUnauthorized || try > 2 || try > 0 && !strings.HasPrefix(sent, "Bearer ") {
			return resp, nil
		}
		if away {
			if g = h.away.asked(resp); g == nil {
				return resp, nil
			}
		}
		f := g.challenge(ctx, resp, age)
		drop(resp)
		if f != nil {
			return nil, h.from(u, f)
		}
	}
}

// exchange sends a request and ends it when its answer does not begin within limit. The time for making a connection is
// bounded by the transport and does not count.
func (h *host) exchange(client *http.Client, req *http.Request, limit time.Duration) (*http.Response, error) {
	reason := late
	if limit == 0 {
		limit, reason = h.stall, mute
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &answerTimer{clock: h.clock, limit: limit, expire: func() { cancel(&faultError{reason(limit)}) }}
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { w.start() }}
	ctx = httptrace.WithClientTrace(ctx, trace)
	resp, err := client.Do(req.WithContext(ctx))
	w.end()
	if err != nil {
		var mine *faultError
		if errors.As(context.Cause(ctx), &mine) {
			err = mine
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = answerBody{resp.Body, cancel}
	return resp, nil
}

// answerTimer bounds the time from when a request was sent until its answer begins. The transport may send a request
// twice, and may say that it was sent after the answer is there.
type answerTimer struct {
	clock  clock
	limit  time.Duration
	expire func()

	mu   sync.Mutex // guards what follows
	stop func() bool
	over bool
}

func (w *answerTimer) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop == nil && !w.over {
		w.stop = w.clock.AfterFunc(w.limit, w.expire)
	}
}

func (w *answerTimer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.stop != nil {
		w.stop()
	}
}

// answerBody ends the context of its request with it.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b answerBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// brief bounds the time for a body that is read for its last words, or to keep the connection.
func (h *host) brief(body io.ReadCloser) io.ReadCloser {
	return briefBody{body, h.clock.AfterFunc(h.stall, func() { _ = body.Close() })}
}

type briefBody struct {
	io.ReadCloser
	stop func() bool
}

func (b briefBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// lost judges a request that got no answer from u.
func (h *host) lost(ctx context.Context, err error, u *url.URL) *fault {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	f := faultOfError(err)
	if u.Host != h.name {
		f.lost = false // the host itself was there
	}
	return h.from(u, f)
}

func (r request) build(ctx context.Context, u *url.URL) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "berth")
	req.Header.Set("Accept-Encoding", "identity")
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if r.ranged {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.from, r.to-1))
	}
	return req, nil
}

// redirection is where a response sends its caller, nil when it is an answer.
func (h *host) redirection(resp *http.Response, r request) (*url.URL, *fault) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	next, err := resp.Location()
	if err != nil || next.Host == "" || next.Scheme != "http" && next.Scheme != "https" {
		return nil, &fault{kind: errdefs.ErrUnknown, text: "redirects to nowhere"}
	}
	if resp.TLS != nil && next.Scheme != "https" && (!h.httpRedirects || !r.proven) {
		text := "redirects to " + next.Host + " without TLS"
		switch {
		case h.httpRedirects:
			text += ", which is followed only for what a digest proves: not for a tag"
		case !h.foreign:
			text += ": " + httpRedirectsKey + " = true for this host in hosts.toml has it followed"
		}
		return nil, &fault{kind: errdefs.ErrUnknown, text: text}
	}
	return next, nil
}

// addHeader adds the header of a configuration, in which names are in any case.
func addHeader(to, from http.Header) {
	for name, values := range from {
		for _, v := range values {
			to.Add(name, v)
		}
	}
}

// sameOrigin reports whether two URLs have scheme, host and port in common.
func sameOrigin(a, b *url.URL) bool { return originOf(a) == originOf(b) }

// originOf is scheme, host and port of a URL, the same for all ways to write them.
func originOf(u *url.URL) string {
	return strings.ToLower(u.Scheme+"://"+u.Hostname()) + ":" + portOf(u)
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	port, _ := net.LookupPort("tcp", strings.ToLower(u.Scheme))
	return fmt.Sprint(port)
}

// drop ends a response; reading the little that is left keeps its connection.
func drop(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}
