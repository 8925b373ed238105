package catalog

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/reference"
	"berth/internal/record"
)

// ImageKind is the kind of the records of images, and layerKind that of those of layers.
var (
	ImageKind = record.Kind{Name: "image", Version: 1, Oldest: 1}
	layerKind = record.Kind{Name: "layer", Version: 1, Oldest: 1}
)

// ImageRecord is what records/<hex> holds.
type ImageRecord struct {
	ID       string   `json:"id"`
	Tags     []string `json:"tags,omitempty"`
	Digests  []string `json:"digests,omitempty"`
	Manifest string   `json:"manifest,omitempty"` // digest of the manifest of this platform
	Choices  []string `json:"choices,omitempty"`  // <platform>@<digest> of what it was chosen from
	Platform string   `json:"platform,omitempty"`
	// Resolved describes what Digests name, as the registries did: media type, digest, size.
	Resolved []ocispec.Descriptor `json:"resolved,omitempty"`
	Size     uint64               `json:"size"`
	// Config is what the id is the digest of, as it was fetched: the config of an image, the manifest of an artifact. It
	// is nil in memory.
	Config []byte `json:"config"`
	// ArtifactConfig is the config of an artifact; nil in memory.
	ArtifactConfig []byte     `json:"artifactConfig,omitempty"`
	Layers         []LayerRef `json:"layers"`
	PulledAt       time.Time  `json:"pulledAt"`
	// Stored is the PulledAt that the disk has: a pull that changes nothing else does not write each time.
	Stored   time.Time     `json:"-"`
	Boot     string        `json:"boot"`
	Durable  bool          `json:"durable"`
	Parsed   ocispec.Image `json:"-"` // what is used of Config
	Artifact string        `json:"-"` // the type of an artifact
	Anew     bool          `json:"-"` // what the image was called before is not to be kept
	// Ceded are tags that the record on the disk has and this one has not: another image has them, which is not durable
	// yet, and a power cut would take it. They leave the disk once it is.
	Ceded []string `json:"-"`
}

// IsArtifact reports whether the record is one of an artifact. Its id is the digest of its manifest, which no config
// can be: it would have to contain its own digest.
func (rec *ImageRecord) IsArtifact() bool { return rec.Manifest == rec.ID }

// LayerRef is one layer of an image, the lowest first.
type LayerRef struct {
	ID     string        `json:"id"`
	DiffID digest.Digest `json:"diffID"`
	Blob   digest.Digest `json:"blob,omitempty"`
	Size   int64         `json:"size"`
}

// LayerRecord is what layers/<id>/layer holds.
type LayerRecord struct {
	ID     string        `json:"id"`
	DiffID digest.Digest `json:"diffID"`
	Chain  digest.Digest `json:"chain,omitempty"` // of a layer that was finalized over others
	Bytes  uint64        `json:"bytes"`
	Inodes uint64        `json:"inodes"`
	Opaque bool          `json:"opaque,omitempty"`
	// Unmarked says that no directory of the layer has the overlay's opaque mark: those of earlier releases do not know.
	Unmarked bool `json:"unmarked,omitempty"`
	// TarSplit says that the layer has one: those of the first release have none.
	TarSplit bool `json:"skeleton,omitempty"`
	// Blob is what the layer was unpacked from, and BlobSize how large that is: those of earlier releases do not know.
	Blob     digest.Digest `json:"blob,omitempty"`
	BlobSize int64         `json:"blobSize,omitempty"`
	// ProvenBy are repositories that had served the blob when the layer was made.
	ProvenBy []string `json:"provenBy,omitempty"`
	Boot     string   `json:"boot"`
	Durable  bool     `json:"durable"`
	// Doubtful says that the disk failed while it took the layer: it is never durable.
	Doubtful bool `json:"doubtful,omitempty"`
}

// layerState is a layer that may be used.
type layerState struct {
	LayerRecord
	// opened says that the layer was there at Open.
	opened bool
	// suspect says that no readable image owned it at Open.
	suspect bool
}

// torn says that a power cut took a record before anything of it was on the disk. It was not durable then: what is has
// a record that was synced before it got its name.
func torn(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) && corrupt.Torn
}

// dedupeTags leaves a tag to one image where several have it on the disk: to one that is not durable, for which a
// durable one has ceded it (takeTags); of several such to the one pulled last, since a crash may have come between the
// writes of two records.
func dedupeTags(images map[string]*ImageRecord) {
	before := func(a, b *ImageRecord) bool {
		if a.Durable != b.Durable {
			return b.Durable
		}
		return a.PulledAt.After(b.PulledAt)
	}
	owner := map[string]*ImageRecord{}
	for _, rec := range images {
		for _, tag := range rec.Tags {
			if o := owner[tag]; o == nil || before(rec, o) {
				owner[tag] = rec
			}
		}
	}
	for _, rec := range images {
		cede(rec, func(tag string) bool { return owner[tag] != rec })
	}
}

// cede takes tags away from a record that keeps them on the disk.
func cede(rec *ImageRecord, taken func(tag string) bool) {
	kept, ceded := []string(nil), slices.Clone(rec.Ceded)
	for _, tag := range rec.Tags {
		if taken(tag) {
			ceded = append(ceded, tag)
		} else {
			kept = append(kept, tag)
		}
	}
	rec.Tags, rec.Ceded = kept, ceded
}

// readRecord reads the record of an image from the disk. It has the config, which is too large to be kept in memory for
// all images.
func readRecord(path, id string) (*ImageRecord, error) {
	rec := &ImageRecord{}
	if _, err := ImageKind.Read(path, rec); err != nil {
		return nil, err
	}
	if rec.ID != id || digest.FromBytes(rec.Config).String() != rec.ID {
		return nil, fail.New(errdefs.ErrDataLoss, "record is not that of %s", id)
	}
	return rec, nil
}

// whole is a record as the disk has it: with its config, which is read when it is one in memory, and with the tags that
// it has ceded.
func whole(d *Disk, rec *ImageRecord) (*ImageRecord, error) {
	full := *rec
	full.Tags = reference.Union(rec.Tags, rec.Ceded)
	if rec.Config != nil {
		return &full, nil
	}
	stored, err := readRecord(d.RecordPath(rec.ID), rec.ID)
	if err != nil {
		return nil, fmt.Errorf("read the config of image %s: %w", rec.ID, err)
	}
	full.Config, full.ArtifactConfig = stored.Config, stored.ArtifactConfig
	return &full, nil
}

// slim is a record without its config.
func (rec *ImageRecord) slim() *ImageRecord {
	small := *rec
	small.Config, small.ArtifactConfig = nil, nil
	return &small
}

// Describe writes the record of a layer into the directory in which it was made.
func Describe(dir string, rec LayerRecord) error {
	return layerKind.Write(filepath.Join(dir, "layer"), rec)
}
