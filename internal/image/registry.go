package image

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/reference"
	"berth/internal/image/remote"
)

// Auth has the credentials of a caller, with the fields of CRI's AuthConfig. If all are empty, requests are anonymous.
type Auth = remote.Auth

// source opens the content of an image. Content that other hosts can serve too has the methods ReportMismatch and
// MismatchedMirrors of remote.Blob, for digest mismatches.
type source interface {
	open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
}

// reportMismatch tells the source that content has not the promised digest. It reports whether opening the content
// again may succeed, and returns the error with the names of the hosts that have served it.
func reportMismatch(content io.ReadCloser, mismatch error) (again bool, err error) {
	c, ok := unwrapped(content).(interface {
		ReportMismatch() bool
		MismatchedMirrors() []string
	})
	if !ok {
		return false, mismatch
	}
	again = c.ReportMismatch()
	if names := c.MismatchedMirrors(); len(names) > 0 {
		mismatch = fmt.Errorf("%w; it came from %s", mismatch, strings.Join(names, " and "))
	}
	return again, mismatch
}

// senderOf names the host that sends content; empty where none does.
func senderOf(content io.ReadCloser) string {
	if c, ok := unwrapped(content).(interface{ Sender() string }); ok {
		return c.Sender()
	}
	return ""
}

// unwrapped is content as its source has opened it.
func unwrapped(content io.ReadCloser) io.ReadCloser {
	if s, ok := content.(spooled); ok {
		content = s.content
	}
	if paced, ok := content.(pacedContent); ok {
		content = paced.ReadCloser
	}
	return content
}

// registry is the source of one reference, with one caller's credentials.
type registry struct {
	*remote.Repository
	host, repository string
}

// place returns a value that is equal for sources whose content comes from the same place.
func place(src source) any {
	if r, ok := src.(registry); ok {
		return r.host
	}
	return src
}

func (r registry) open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, err := r.Open(ctx, desc)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// connect prepares requests to the registries of ref. It sends none.
func (s *pipeline) connect(ctx context.Context, ref reference.Reference, auth *Auth) (registry, error) {
	r, err := s.settings().remote.Repository(ctx, ref.Named(), auth)
	return registry{r, ref.Host(), ref.Repository()}, err
}

// find resolves ref and chooses the image for a platform, unless the store has that already. It passes over a mirror if
// the content that it names is missing or is no image.
func (s *pipeline) find(
	ctx context.Context, ref reference.Reference, reg registry, c *chooser, namespace string,
) (desc ocispec.Descriptor, found *chosen, err error) {
	type answer struct {
		digest digest.Digest
		size   int64
	}
	tried := map[answer]bool{}
	for {
		next, failed := reg.Resolve(ctx)
		said := answer{next.Digest, next.Size}
		if failed == nil && !tried[said] {
			failed = s.verify(ctx, Question{Name: ref.String(), Descriptor: next, Namespace: namespace})
		}
		if failed != nil || tried[said] {
			if err == nil {
				err = failed
			}
			return desc, nil, err
		}
		desc, tried[said] = next, true
		if found = c.unchanged(ref, desc); found != nil {
			return desc, found, nil
		}
		if found, err = c.choose(ctx, desc); err == nil || !unusable(err) || !reg.RejectResolved() {
			return desc, found, err
		}
	}
}

// unusable reports whether an error may be due to the host that resolved the reference: the content that it named is
// missing, or is no image.
func unusable(err error) bool {
	k := kindOf(err)
	return k == errdefs.ErrDataLoss || k == errdefs.ErrNotFound && isRemote(err)
}
