package image

import (
	"context"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/image/reference"
)

// verify asks the verifier about an image, before anything of the image is fetched or shared.
func (s *pipeline) verify(ctx context.Context, q Question) error {
	verifier := s.settings().Verifier
	if verifier == nil {
		return nil
	}
	return refusal(ctx, q, verifier.Verify(ctx, q))
}

// Confirm asks the store's verifier whether pods of a namespace may run an image of the store. It is needed because a
// kubelet does not pull an image that is present, so Pull may not have asked for this namespace. names are the names
// that the user and the kubelet have for the image, in this order. The verifier is not asked about images of archives,
// which root has imported.
func Confirm(ctx context.Context, s *Store, img Image, namespace string, names ...string) error {
	verifier := s.pipeline.settings().Verifier
	if verifier == nil || len(img.RepoDigests) == 0 {
		return nil
	}
	q := question(img, names)
	q.Namespace = namespace
	return refusal(ctx, q, verifier.Confirm(ctx, q))
}

func refusal(ctx context.Context, q Question, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fail.New(crierrors.ErrSignatureValidationFailed, "%s: %w", q.Descriptor.Digest, err)
}

// question returns the question about an image that has a digest in a repository. Its name is the tag that the user has
// written, if the image has that tag, or else the digest in the repository.
func question(i Image, names []string) Question {
	whole := i.RepoDigest(names...)
	repository, text, _ := strings.Cut(whole, "@")
	q := Question{Name: whole, Descriptor: ocispec.Descriptor{Digest: digest.Digest(text)}}
	for _, name := range names {
		ref, err := reference.Parse(name)
		if err == nil && ref.Repository() == repository && slices.Contains(i.RepoTags, ref.String()) {
			q.Name = ref.String()
			break
		}
	}
	for _, desc := range i.Resolved {
		if desc.Digest == q.Descriptor.Digest {
			q.Descriptor = desc
		}
	}
	return q
}

// plainly keeps the fields of a descriptor that a registry's answer has.
func plainly(desc ocispec.Descriptor) []ocispec.Descriptor {
	return []ocispec.Descriptor{{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}}
}
