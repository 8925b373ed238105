package image

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/record"
)

var (
	imageKind = record.Kind{Name: "image", Version: 1, Oldest: 1}
	layerKind = record.Kind{Name: "layer", Version: 1, Oldest: 1}
)

// imageRecord is what records/<hex> holds.
type imageRecord struct {
	ID          string     `json:"id"`
	Tags        []string   `json:"tags,omitempty"`
	Digests     []string   `json:"digests,omitempty"`
	Manifest    string     `json:"manifest,omitempty"` // digest of the manifest of this platform
	Choices     []string   `json:"choices,omitempty"`  // <platform>@<digest> of what it was chosen from
	Platform    string     `json:"platform,omitempty"`
	Size        uint64     `json:"size"`
	Config      []byte     `json:"config"` // as fetched: its digest is the id; nil in memory
	Layers      []layerRef `json:"layers"`
	PulledAt    time.Time  `json:"pulledAt"`
	Boot        string     `json:"boot"`
	Durable     bool       `json:"durable"`
	parsedImage ocispec.Image
}

// layerRef is one layer of an image, the lowest first.
type layerRef struct {
	ID     string        `json:"id"`
	DiffID digest.Digest `json:"diffID"`
	Blob   digest.Digest `json:"blob,omitempty"`
	Size   int64         `json:"size"`
}

// layerRecord is what layers/<id>/layer holds.
type layerRecord struct {
	ID     string        `json:"id"`
	DiffID digest.Digest `json:"diffID"`
	Chain  digest.Digest `json:"chain,omitempty"` // of a layer that was settled over others
	Bytes  uint64        `json:"bytes"`
	Inodes uint64        `json:"inodes"`
	Opaque bool          `json:"opaque,omitempty"`
	// Skeleton says that the layer has one: those of the first release have none.
	Skeleton bool   `json:"skeleton,omitempty"`
	Boot     string `json:"boot"`
	Durable  bool   `json:"durable"`
	// Doubtful says that the disk failed while it took the layer: it is never durable.
	Doubtful bool `json:"doubtful,omitempty"`
}

// layerState is a layer that may be used.
type layerState struct {
	layerRecord
	holds int
	round uint64 // the sweep during which it was last held
	// opened says that the layer was there at Open.
	opened bool
	// suspect says that no readable image owned it at Open.
	suspect bool
}

// load reads what is on disk and returns the directories that are of no use.
func (c *catalog) load() (left []func(), err error) {
	ingest, err := os.ReadDir(c.path(ingestDir))
	if err != nil {
		return nil, err
	}
	for _, e := range ingest {
		c.active.Store(e.Name(), true)
		left = append(left, c.discarder(e.Name()))
	}
	old, err := c.loadLayers()
	if err != nil {
		return nil, err
	}
	return append(left, old...), c.loadImages()
}

func (c *catalog) loadLayers() (left []func(), err error) {
	entries, err := os.ReadDir(c.path(layersDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := e.Name()
		var rec layerRecord
		_, err := layerKind.Read(c.layerRecordPath(id), &rec)
		switch {
		case torn(err), err == nil && rec.ID == id && !rec.Durable && rec.Boot != c.boot:
			var discard func()
			err := at("open.layer", func() (err error) { discard, err = c.setAside(id); return err })
			if err != nil {
				return nil, err
			}
			left = append(left, discard)
		case err != nil:
			c.problem(Finding{Layer: id, Path: c.path(layersDir, id), Problem: err.Error()})
		case rec.ID != id:
			c.problem(Finding{Layer: id, Path: c.path(layersDir, id), Problem: "its record is that of " + rec.ID})
		default:
			c.present[id] = &layerState{layerRecord: rec}
		}
	}
	return left, nil
}

func (c *catalog) loadImages() error {
	entries, err := os.ReadDir(c.path(recordsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := c.path(recordsDir, e.Name())
		if strings.HasPrefix(e.Name(), record.TempPrefix) {
			_ = os.Remove(path)
			continue
		}
		rec, err := c.readImage(path, e.Name())
		if why := c.useless(rec, err); why != "" {
			c.log.Warn("drop image; the next pull brings it again", "image", e.Name(), "why", why)
			if err := at("open.image", func() error { return os.Remove(path) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err != nil {
			c.problem(Finding{Image: "sha256:" + e.Name(), Path: path, Problem: err.Error()})
			continue
		}
		c.images[rec.ID] = rec
	}
	dedupeTags(c.images)
	c.markSuspects()
	return nil
}

// useless says why an image record is of no use to anybody, "" when it is, or when a person should look at it.
func (c *catalog) useless(rec *imageRecord, err error) string {
	if torn(err) || err == nil && !rec.Durable && rec.Boot != c.boot {
		return "it was not on disk yet when the machine went down"
	}
	if rec == nil {
		return ""
	}
	for _, l := range rec.Layers { // a repair was cut off between taking out a layer and fetching it again
		if _, err := os.Lstat(c.path(layersDir, l.ID)); errors.Is(err, fs.ErrNotExist) {
			return "its layer " + l.ID + " is gone"
		}
	}
	return ""
}

// torn says that a power cut took a record before anything of it was on the disk. It was not durable then: what is has a
// record that was synced before it got its name.
func torn(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) && corrupt.Torn
}

// dedupeTags leaves a tag to the image pulled last: a crash between the writes of two records may have left it to both.
func dedupeTags(images map[string]*imageRecord) {
	owner := map[string]*imageRecord{}
	for _, rec := range images {
		for _, tag := range rec.Tags {
			if o := owner[tag]; o == nil || rec.PulledAt.After(o.PulledAt) {
				owner[tag] = rec
			}
		}
	}
	for _, rec := range images {
		rec.Tags = slices.DeleteFunc(rec.Tags, func(tag string) bool { return owner[tag] != rec })
	}
}

// markSuspects remembers the layers that belong to no image that could be read. As long as there are records that could
// not, one of them may own such a layer.
func (c *catalog) markSuspects() {
	marked := c.markedLocked()
	for id, l := range c.present {
		_, owned := marked[id]
		l.suspect, l.opened = !owned, true
	}
}

// readImage reads one record and makes sure that it can be used.
func (c *catalog) readImage(path, name string) (*imageRecord, error) {
	rec, err := readRecord(path, "sha256:"+name)
	if err != nil {
		return nil, err
	}
	if rec.parsedImage, err = decodeConfig(rec.Config); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "image config: %w", err)
	}
	rec.Config = nil // RawConfig reads it again where somebody needs it
	for _, l := range rec.Layers {
		if c.present[l.ID] == nil && (rec.Durable || rec.Boot == c.boot) {
			return rec, fail.New(errdefs.ErrDataLoss,
				"layer %s cannot be used: pull the image again, or run `berth check --repair`", l.ID)
		}
	}
	return rec, nil
}
