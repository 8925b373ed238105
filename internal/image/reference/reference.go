// Package reference reads the names of images, as users, configurations and archives write them.
package reference

import (
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
)

// Reference is a normalized image name: registry host, repository, and a tag or a digest. A reference that has both
// goes by its digest, as in the kubelet.
type Reference struct{ named reference.Named }

// Parse completes and checks what a user wrote: `busybox` is docker.io/library/busybox:latest.
func Parse(s string) (Reference, error) {
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

// Named is the reference as the library of the distribution project has it.
func (r Reference) Named() reference.Named { return r.named }

// Digest is the digest in the reference, "" when it goes by a tag.
func (r Reference) Digest() digest.Digest {
	if d, ok := r.named.(reference.Digested); ok {
		return d.Digest()
	}
	return ""
}

// At is the reference to one digest of the same repository.
func (r Reference) At(d digest.Digest) string { return r.Repository() + "@" + d.String() }

// RepositoryOf is a whole reference without its tag and digest.
func RepositoryOf(whole string) string {
	name, _, _ := strings.Cut(whole, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		return name[:colon]
	}
	return name
}

// Append is what is in old or in added, with what was added last at the end.
func Append(old, added []string) []string {
	kept := slices.DeleteFunc(slices.Clone(old), func(s string) bool { return slices.Contains(added, s) })
	return append(kept, added...)
}

// Union are the names of both lists, sorted, each once.
func Union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}
