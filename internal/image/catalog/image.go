package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/reference"
)

// Image is one image of the store. It is a value: nothing changes it after it was handed out.
type Image struct {
	// ID is "sha256:<config digest>", of an artifact the digest of its manifest: the one value for Image.id, image_id, and
	// what PullImage answers.
	ID       string
	RepoTags []string
	// RepoDigests are <repository>@<digest> for each repository that the image was pulled from, the last pulled at the
	// end; of each repository those of the last few pulls.
	RepoDigests []string
	// Size is what was to be transferred: config and compressed layers.
	Size   uint64
	Config ocispec.Image
	// Artifact is the type of an OCI artifact, which can be mounted but not run; empty for an image.
	Artifact string
	// Layers are layer ids, the lowest first.
	Layers   []string
	Pinned   bool
	PulledAt time.Time
	Platform string
	// Manifest is the digest of the manifest for the platform, "" for what had none.
	Manifest string
	// Durable says that the image would survive a power cut.
	Durable bool

	record    string               // path of its record
	LayerRefs []LayerRef           // tells more of Layers
	Resolved  []ocispec.Descriptor // as ImageRecord has it
}

// RepoDigest is the image's digest in the repository of the first of the names that has one, as the image_ref of a
// container tells it. Names are references as users write them; what is none, such as an id, is passed over. Where no
// name helps it is the first digest that the image has, and its id where it has none, as an imported one.
func (i Image) RepoDigest(names ...string) string {
	for _, name := range names {
		ref, err := reference.Parse(name)
		if err != nil {
			continue
		}
		if slices.Contains(i.RepoDigests, ref.String()) {
			return ref.String()
		}
		for _, d := range slices.Backward(i.RepoDigests) {
			if strings.HasPrefix(d, ref.Repository()+"@") {
				return d
			}
		}
	}
	if len(i.RepoDigests) > 0 {
		return i.RepoDigests[0]
	}
	return i.ID
}

// ArtifactDocuments reads the manifest and the config of an artifact.
func (img Image) ArtifactDocuments() (m *ocispec.Manifest, config []byte, err error) {
	rec, err := readRecord(img.record, img.ID)
	if err != nil {
		return nil, nil, fmt.Errorf("read the documents of artifact %s: %w", img.ID, err)
	}
	m = &ocispec.Manifest{}
	if err := json.Unmarshal(rec.Config, m); err != nil {
		return nil, nil, fail.New(errdefs.ErrDataLoss, "read the manifest of artifact %s: %w", img.ID, err)
	}
	config = rec.ArtifactConfig
	if m.Config.Digest == ocispec.DescriptorEmptyJSON.Digest { // most artifacts have this one, which needs no record
		config = ocispec.DescriptorEmptyJSON.Data
	}
	if m.Config.Digest.Validate() != nil || m.Config.Digest.Algorithm().FromBytes(config) != m.Config.Digest {
		return nil, nil, fail.New(errdefs.ErrFailedPrecondition, "the config of artifact %s is not here, since an earlier "+
			"release of Berth has written its record: remove it and pull it again", img.ID)
	}
	return m, config, nil
}

// RawConfig reads the config of an image, or the manifest of an artifact, as it was fetched: its digest is the id.
func (img Image) RawConfig() ([]byte, error) {
	rec, err := readRecord(img.record, img.ID)
	if err != nil {
		op := "read the config of image " + img.ID
		return nil, fail.About(fail.Detail{Step: op}, "%s: %w", op, err)
	}
	return rec.Config, nil
}
