package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"berth/internal/record"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
	Platform    string     `json:"platform,omitempty"`
	Size        uint64     `json:"size"`
	Config      []byte     `json:"config"` // as fetched: its digest is the id
	Layers      []layerRef `json:"layers"`
	PulledAt    time.Time  `json:"pulledAt"`
	Boot        string     `json:"boot"`
	Durable     bool       `json:"durable"`
	revision    uint64     // of the value in memory
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
}

// layerState is a layer that may be used.
type layerState struct {
	layerRecord
	holds int
	round uint64 // the sweep during which it was last held
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
		case err != nil:
			c.problem(Finding{Layer: id, Path: c.path(layersDir, id), Problem: err.Error()})
		case rec.ID != id:
			c.problem(Finding{Layer: id, Path: c.path(layersDir, id), Problem: "its record is that of " + rec.ID})
		case !rec.Durable && rec.Boot != c.boot:
			discard, err := c.setAside(id)
			if err != nil {
				return nil, err
			}
			left = append(left, discard)
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
		if err != nil {
			c.problem(Finding{Image: "sha256:" + e.Name(), Path: path, Problem: err.Error()})
			continue
		}
		if !rec.Durable && rec.Boot != c.boot {
			c.log.Warn("drop image that was not on disk yet when the machine went down", "image", rec.ID, "tags", rec.Tags)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		c.images[rec.ID] = rec
	}
	dedupeTags(c.images)
	c.markSuspects()
	return nil
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
		l.suspect = !owned
	}
}

// readImage reads one record and makes sure that it can be used.
func (c *catalog) readImage(path, name string) (*imageRecord, error) {
	rec := &imageRecord{}
	if _, err := imageKind.Read(path, rec); err != nil {
		return nil, err
	}
	if rec.ID != "sha256:"+name || digest.FromBytes(rec.Config).String() != rec.ID {
		return nil, errorf(DataLoss, "record is not that of sha256:%s", name)
	}
	if err := json.Unmarshal(rec.Config, &rec.parsedImage); err != nil {
		return nil, errorf(DataLoss, "image config: %w", err)
	}
	for _, l := range rec.Layers {
		if c.present[l.ID] == nil && (rec.Durable || rec.Boot == c.boot) {
			return nil, errorf(DataLoss, "layer %s is missing: pull the image again, or run `berth check --repair`", l.ID)
		}
	}
	return rec, nil
}
