package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Image is what an image or an artifact consists of beside its layers.
type Image struct {
	Manifest   ocispec.Manifest
	Descriptor ocispec.Descriptor // of the manifest
	// RawConfig is the document whose digest is the id: the config of an image; of an artifact the manifest, since
	// artifacts may share a config.
	RawConfig []byte
	Config    ocispec.Image // empty for an artifact
	Artifact  *Artifact     // nil for an image
}

// ID is the id of the image or artifact.
func (i *Image) ID() digest.Digest { return digest.FromBytes(i.RawConfig) }

// Limits bound what a manifest may ask for.
type Limits struct {
	Layers int
	Bytes  int64 // what the layers may have to be transferred
}

// ErrArtifact says of a document that pretends to be an image that it is none, as signatures do.
var ErrArtifact = errors.New("it is an artifact, not a container image")

// CheckManifest refuses a manifest of what is neither an image nor an artifact, or of one that is larger than the
// limits allow.
func CheckManifest(m *ocispec.Manifest, limits Limits) error {
	artifact := IsArtifact(m)
	if !artifact && !hasImageConfig(m) {
		return fail.New(errdefs.ErrFailedPrecondition, "it is no container image: its config has no media type")
	}
	if err := limit.ImageLayers.At(int64(limits.Layers)).Check(int64(len(m.Layers))); err != nil {
		return err
	}
	var total int64
	for _, l := range m.Layers {
		if !artifact && !images.IsLayerType(l.MediaType) {
			return fail.New(errdefs.ErrFailedPrecondition, "%w: layer %s is of type %q", ErrArtifact, l.Digest, l.MediaType)
		}
		if images.IsLayerType(l.MediaType) &&
			(strings.Contains(l.MediaType, "encrypted") || strings.Contains(l.MediaType, "erofs")) {
			return fail.New(errdefs.ErrFailedPrecondition, "layer %s is of type %q, which cannot be unpacked here", l.Digest,
				l.MediaType)
		}
		if err := CheckDescriptor(l); err != nil {
			return err
		}
		if total += l.Size; total < 0 {
			return fail.New(errdefs.ErrDataLoss, "the sizes of its layers add up to more than any disk")
		}
	}
	return limit.ImageBytes.At(limits.Bytes).Check(total)
}

// Agree reports whether manifest and config describe the same layers. The config of an artifact describes none.
func (i *Image) Agree() error {
	if i.Artifact != nil {
		return nil
	}
	rootfs := i.Config.RootFS
	if len(rootfs.DiffIDs) != len(i.Manifest.Layers) {
		return fail.New(errdefs.ErrDataLoss, "the manifest has %d layers and the config %d diff ids", len(i.Manifest.Layers),
			len(rootfs.DiffIDs))
	}
	for _, d := range rootfs.DiffIDs {
		if err := d.Validate(); err != nil {
			return fail.New(errdefs.ErrDataLoss, "diff id %q: %w", d, err)
		}
	}
	return nil
}

// MayBeImage reports whether an entry of an index could lead to an image. Others are signatures, attestations, charts
// and the like, which lie beside images and may even name a platform.
func MayBeImage(m ocispec.Descriptor) bool {
	switch {
	case !images.IsManifestType(m.MediaType) && !images.IsIndexType(m.MediaType):
		return false
	case m.ArtifactType != "" && !images.IsConfigType(m.ArtifactType):
		return false
	case m.Annotations["vnd.docker.reference.type"] != "": // how BuildKit marks attestations
		return false
	}
	return m.Platform == nil || m.Platform.OS != "unknown" || m.Platform.Architecture != "unknown"
}

// MayBeArtifact reports the same for an artifact, in an index that has no images.
func MayBeArtifact(m ocispec.Descriptor) bool {
	m.ArtifactType = ""
	return MayBeImage(m)
}

// Prove reports whether raw is the document that desc promises. what it is goes into the error.
func Prove(raw []byte, desc ocispec.Descriptor, what string) error {
	if int64(len(raw)) != desc.Size {
		more := ""
		if int64(len(raw)) > desc.Size {
			more = "or more "
		}
		return fail.New(errdefs.ErrDataLoss, "%s %s has %d %sbytes, not the %d promised", what, desc.Digest, len(raw), more,
			desc.Size)
	}
	if got := desc.Digest.Algorithm().FromBytes(raw); got != desc.Digest {
		return fail.New(errdefs.ErrDataLoss, "%s has the digest %s, not the %s promised", what, got, desc.Digest)
	}
	return nil
}

// CheckDescriptor refuses a descriptor that promises nothing that could be proven.
func CheckDescriptor(desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return fail.New(errdefs.ErrDataLoss, "digest %q: %w", desc.Digest, err)
	}
	if desc.Size < 0 {
		return fail.New(errdefs.ErrDataLoss, "%s has the size %d", desc.Digest, desc.Size)
	}
	return nil
}

// MediaType decides between manifest and index by what it is, and refuses what could be read as either.
func MediaType(desc ocispec.Descriptor, raw []byte) (string, error) {
	var doc struct {
		MediaType     string          `json:"mediaType"`
		SchemaVersion int             `json:"schemaVersion"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		Manifests     json.RawMessage `json:"manifests"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if err := unambiguousOf(raw, limit.DocumentValues); err != nil {
		if fail.Is(err, errdefs.ErrResourceExhausted) {
			return "", fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if !utf8.Valid(raw) {
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s is not UTF-8", desc.Digest)
	}
	isImage, isIndex := doc.Config != nil || doc.Layers != nil, doc.Manifests != nil
	switch {
	case doc.FSLayers != nil || doc.SchemaVersion == 1:
		return "", fail.New(errdefs.ErrFailedPrecondition,
			"it is in Docker's schema 1, which is no longer supported: push it again with a current tool")
	case isImage && (isIndex || images.IsIndexType(doc.MediaType)), isIndex && images.IsManifestType(doc.MediaType):
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s is both an image and an index", desc.Digest)
	case isIndex:
		return ocispec.MediaTypeImageIndex, nil
	case isImage:
		return ocispec.MediaTypeImageManifest, nil
	}
	return "", fail.New(errdefs.ErrFailedPrecondition, "%s of type %q is neither an image nor an index", desc.Digest,
		desc.MediaType)
}

// ChainIDs names each layer together with all below it.
func ChainIDs(diffIDs []digest.Digest) []digest.Digest {
	out := make([]digest.Digest, len(diffIDs))
	for i, d := range diffIDs {
		if out[i] = d; i > 0 {
			out[i] = digest.FromString(out[i-1].String() + " " + d.String())
		}
	}
	return out
}
