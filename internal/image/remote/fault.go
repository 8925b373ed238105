package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// fault is why one host did not do what it was asked.
type fault struct {
	kind    error
	text    string
	status  int           // of HTTP, 0 when there was no answer
	again   bool          // the same host may do better
	dead    bool          // it is not there or does not answer: another one first
	after   time.Duration // it asks to be left alone for so long
	elapsed bool          // its time was up, not the caller's
	late    bool          // it did not begin its answer in time: it may be fetching what was asked for
	lost    bool          // no connection to it could be made
	ranged  bool          // it was asked for a range
	unfit   bool          // it does not serve ranges as it should: all of it may be had without one
}

// faultOfError judges a request that got no answer, or an answer that broke off.
func faultOfError(err error) *fault {
	var already *faultError
	if errors.As(err, &already) {
		return already.fault
	}
	f := &fault{kind: crierrors.ErrRegistryUnavailable, text: plainText(err), again: true}
	var dns *net.DNSError
	var op *net.OpError
	var timeout net.Error
	switch {
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return &fault{kind: errdefs.ErrUnauthenticated, text: plainText(err)}
	case isCertificate(err):
		f.again = false
	case errors.As(err, &dns):
		f.dead, f.lost, f.again = true, true, !dns.IsNotFound
	case errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		f.dead, f.lost, f.elapsed = true, true, op.Timeout()
	case errors.As(err, &timeout) && timeout.Timeout(): // of a TLS handshake: all others are of this package
		f.dead, f.lost, f.elapsed = true, true, true
	}
	return f
}

// isCertificate says that the two ends cannot agree on TLS, which no retry changes.
func isCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	return errors.As(err, &verify) || errors.As(err, &unknown) || errors.As(err, &name) || errors.As(err, &record) ||
		errors.As(err, &alert)
}

// plainText is what went wrong without the URL, which may be signed.
func plainText(err error) string {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	text := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		text = "the connection broke off"
	}
	return text
}

// stalled is the fault of a host that sends too little.
func stalled(limit time.Duration) *fault {
	text := fmt.Sprintf("it stalled: it sent less than %d KiB in %s", minProgress>>10, limit)
	return &fault{kind: crierrors.ErrRegistryUnavailable, text: text, again: true, dead: true, elapsed: true}
}

// late is the fault of a host that took a request for a blob and did not begin to send it. A cache that fetches the
// whole blob before it answers behaves so. The next attempt may find it in the cache, and what else the host has is
// served meanwhile.
func late(limit time.Duration) *fault {
	text := fmt.Sprintf("it did not begin to send it within %s", limit)
	return &fault{kind: crierrors.ErrRegistryUnavailable, text: text, again: true, late: true, elapsed: true}
}

// mute is the fault of a host that does not answer a request for a manifest.
func mute(limit time.Duration) *fault {
	text := fmt.Sprintf("it did not begin its answer within %s", limit)
	return &fault{kind: crierrors.ErrRegistryUnavailable, text: text, again: true, dead: true, elapsed: true}
}

// faultError carries a fault as the cause of a context's end.
type faultError struct{ fault *fault }

func (e *faultError) Error() string { return e.fault.text }

// faultOfStatus judges a status that is no success.
func faultOfStatus(code int) *fault {
	f := &fault{kind: errdefs.ErrUnknown, status: code, text: fmt.Sprintf("%d %s", code, http.StatusText(code))}
	switch {
	case code == http.StatusUnauthorized:
		f.kind = errdefs.ErrUnauthenticated
	case code == http.StatusForbidden:
		f.kind = errdefs.ErrPermissionDenied
	case code == http.StatusNotFound || code == http.StatusGone:
		f.kind = errdefs.ErrNotFound
	case code == http.StatusRequestTimeout || code == http.StatusTooEarly || code == http.StatusTooManyRequests:
		f.kind, f.again = crierrors.ErrRegistryUnavailable, true
	case code >= 500:
		f.kind, f.again = crierrors.ErrRegistryUnavailable, code != http.StatusNotImplemented &&
			code != http.StatusHTTPVersionNotSupported
	}
	return f
}

// faultOfAnswer judges a response that is no success. It reads a little of the body for what the registry says, which
// may be what it was sent.
func faultOfAnswer(resp *http.Response, now time.Time, secrets []string) *fault {
	_, credential, _ := strings.Cut(resp.Request.Header.Get("Authorization"), " ")
	f := faultOfStatus(resp.StatusCode)
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	f.text += complaintIn(body, append(secrets[:len(secrets):len(secrets)], credential))
	f.ranged = resp.Request.Header.Get("Range") != ""
	f.unfit = resp.StatusCode == http.StatusRequestedRangeNotSatisfiable || f.ranged && refusesRange(resp.StatusCode)
	if f.again {
		f.after = retryAfter(resp.Header.Get("Retry-After"), now)
	}
	return f
}

// refusesRange reports whether a status, in answer to a request for a range, may be about the range alone. Servers and
// what stands before them use many: 400, 403, 405 and 501 were seen. The others are about who asks, what for, or when.
func refusesRange(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusGone, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return false
	}
	return code/100 == 4 || code == http.StatusNotImplemented || code == http.StatusHTTPVersionNotSupported
}

// complaintIn finds the first message in the JSON that registries answer with, as the end of a sentence without
// secrets.
func complaintIn(body []byte, secrets []string) string {
	var doc struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &doc) != nil || len(doc.Errors) == 0 {
		return ""
	}
	text := doc.Errors[0].Message
	if text == "" {
		text = doc.Errors[0].Code
	}
	text = scrub(strings.Join(strings.Fields(text), " "), secrets)
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	if text == "" {
		return ""
	}
	return ": " + strconv.Quote(text)
}

// retryAfter reads the header of that name: seconds, or a date. It is never negative.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
		return time.Duration(max(0, min(n, 1<<31))) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// ended returns the cause of ctx's end, nil while it lives.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
