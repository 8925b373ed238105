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

// Auth is what a caller may present to a registry, as CRI's AuthConfig has it. All empty is anonymous.
type Auth = remote.Auth

// source is where the content of an image comes from. Content that other hosts can serve as well has the methods of
// remote.Blob for a digest mismatch: ReportMismatch and MismatchedMirrors.
type source interface {
	open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
}

// reportMismatch tells the source that what was read is not what the digest promises. It returns whether opening the
// content again may do better, and the error with the names of the hosts that have served it.
func reportMismatch(content io.ReadCloser, mismatch error) (again bool, err error) {
	if s, ok := content.(spooled); ok {
		content = s.content
	}
	if paced, ok := content.(pacedContent); ok {
		content = paced.ReadCloser
	}
	c, ok := content.(interface {
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

// registry is a source for one reference and one caller's credentials.
type registry struct {
	*remote.Repository
	host, repository string
}

// place is where the content of a source comes from, to be compared.
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

// connect prepares talking to the registries of ref; it sends nothing yet.
func (s *pipeline) connect(ctx context.Context, ref reference.Reference, auth *Auth) (registry, error) {
	r, err := s.settings().remote.Repository(ctx, ref.Named(), auth)
	return registry{r, ref.Host(), ref.Repository()}, err
}

// find asks what ref names now and chooses the image for a platform, unless the store has that already. A mirror that
// names what is not to be had, or not what it should be, is passed over.
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

// unusable reports whether the host that resolved the reference may be wrong: what it names is missing, or is no image.
func unusable(err error) bool {
	k := kindOf(err)
	return k == errdefs.ErrDataLoss || k == errdefs.ErrNotFound && isRemote(err)
}
