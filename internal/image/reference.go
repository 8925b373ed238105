package image

import (
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
)

// Reference is a normalized image name: registry host, repository, and a tag or a digest. A reference that has both goes
// by its digest, as in the kubelet.
type Reference struct{ named reference.Named }

// ParseReference completes and checks what a user wrote: `busybox` is docker.io/library/busybox:latest.
func ParseReference(s string) (Reference, error) {
	named, err := reference.ParseDockerRef(s)
	if err != nil {
		return Reference{}, fail.New(errdefs.ErrInvalidArgument, "image reference %q: %w", s, err)
	}
	if reference.Domain(named) == "" {
		return Reference{}, fail.New(errdefs.ErrInvalidArgument, "image reference %q: %q is not the name of a registry", s,
			strings.SplitN(s, "/", 2)[0])
	}
	return Reference{named}, nil
}

// String is the whole reference.
func (r Reference) String() string { return r.named.String() }

// Repository is the reference without tag and digest.
func (r Reference) Repository() string { return r.named.Name() }

// Host is the registry the name belongs to.
func (r Reference) Host() string { return reference.Domain(r.named) }

// Digest is the digest in the reference, "" when it goes by a tag.
func (r Reference) Digest() digest.Digest {
	if d, ok := r.named.(reference.Digested); ok {
		return d.Digest()
	}
	return ""
}

// at is the reference to one digest of the same repository.
func (r Reference) at(d digest.Digest) string { return r.Repository() + "@" + d.String() }

// leastDigits is how many digits of an image's id name it. A few would let anybody who may name an image try them all.
const leastDigits = 12

// isShortID says whether s could be the beginning of an image's id, as people type it: bare, since a request that says
// sha256: means the whole id.
func isShortID(s string) bool {
	return len(s) >= leastDigits && len(s) < 64 && strings.Trim(s, "0123456789abcdef") == ""
}
