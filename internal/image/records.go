package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sort"
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
	ID      string        `json:"id"`
	DiffID  digest.Digest `json:"diffID"`
	Chain   digest.Digest `json:"chain,omitempty"` // of a layer that was settled over others
	Bytes   uint64        `json:"bytes"`
	Inodes  uint64        `json:"inodes"`
	Opaque  bool          `json:"opaque,omitempty"`
	Boot    string        `json:"boot"`
	Durable bool          `json:"durable"`
}

// layerState is a layer that may be used.
type layerState struct {
	layerRecord
	holds int
	round uint64 // the sweep during which it was last held
	// suspect says that no readable image owned it at Open.
	suspect bool
}

func (s *Store) recordPath(id string) string {
	return s.path(recordsDir, strings.TrimPrefix(id, "sha256:"))
}

func (s *Store) layerRecordPath(id string) string { return s.path(layersDir, id, "layer") }

// load reads what is on disk and returns the directories that are of no use.
func (s *Store) load() (left []func(), err error) {
	ingest, err := os.ReadDir(s.path(ingestDir))
	if err != nil {
		return nil, err
	}
	for _, e := range ingest {
		s.active.Store(e.Name(), true)
		left = append(left, s.discarder(e.Name()))
	}
	old, err := s.loadLayers()
	if err != nil {
		return nil, err
	}
	return append(left, old...), s.loadImages()
}

func (s *Store) loadLayers() (left []func(), err error) {
	entries, err := os.ReadDir(s.path(layersDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := e.Name()
		var rec layerRecord
		_, err := layerKind.Read(s.layerRecordPath(id), &rec)
		switch {
		case err != nil:
			s.problem(Finding{Layer: id, Path: s.path(layersDir, id), Problem: err.Error()})
		case rec.ID != id:
			s.problem(Finding{Layer: id, Path: s.path(layersDir, id), Problem: "its record is that of " + rec.ID})
		case !rec.Durable && rec.Boot != s.boot:
			discard, err := s.setAside(id)
			if err != nil {
				return nil, err
			}
			left = append(left, discard)
		default:
			s.present[id] = &layerState{layerRecord: rec}
		}
	}
	return left, nil
}

// setAside moves a layer out of use, so that its name is free; discard removes it.
func (s *Store) setAside(id string) (discard func(), err error) {
	dir, discard := s.claimIngest()
	if err := os.Rename(s.path(layersDir, id), dir); err != nil {
		discard()
		return nil, err
	}
	return discard, nil
}

func (s *Store) loadImages() error {
	entries, err := os.ReadDir(s.path(recordsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := s.path(recordsDir, e.Name())
		if strings.HasPrefix(e.Name(), record.TempPrefix) {
			_ = os.Remove(path)
			continue
		}
		rec, err := s.readImage(path, e.Name())
		if err != nil {
			s.problem(Finding{Image: "sha256:" + e.Name(), Path: path, Problem: err.Error()})
			continue
		}
		if !rec.Durable && rec.Boot != s.boot {
			s.log.Warn("drop image that was not on disk yet when the machine went down", "image", rec.ID, "tags", rec.Tags)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		s.images[rec.ID] = rec
	}
	s.dedupeTags()
	s.markSuspects()
	return nil
}

// dedupeTags leaves a tag to the image pulled last: a crash between the writes of two records may have left it to both.
func (s *Store) dedupeTags() {
	owner := map[string]*imageRecord{}
	for _, rec := range s.images {
		for _, tag := range rec.Tags {
			if o := owner[tag]; o == nil || rec.PulledAt.After(o.PulledAt) {
				owner[tag] = rec
			}
		}
	}
	for _, rec := range s.images {
		rec.Tags = slices.DeleteFunc(rec.Tags, func(tag string) bool { return owner[tag] != rec })
	}
}

// markSuspects remembers the layers that belong to no image that could be read. As long as there are records that could
// not, one of them may own such a layer.
func (s *Store) markSuspects() {
	marked := s.markedLocked()
	for id, l := range s.present {
		_, owned := marked[id]
		l.suspect = !owned
	}
}

// readImage reads one record and makes sure that it can be used.
func (s *Store) readImage(path, name string) (*imageRecord, error) {
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
		if s.present[l.ID] == nil && (rec.Durable || rec.Boot == s.boot) {
			return nil, errorf(DataLoss, "layer %s is missing: pull the image again, or run `berth check --repair`", l.ID)
		}
	}
	return rec, nil
}

// publish replaces the snapshot by what is now. Callers hold mu, but Open.
func (s *Store) publish() {
	i := &index{byID: map[string]int{}, byName: map[string]int{}, opaque: map[string]bool{}, at: time.Now()}
	for _, rec := range s.images {
		i.images = append(i.images, s.imageOf(rec))
	}
	sort.Slice(i.images, func(a, b int) bool { return i.images[a].ID < i.images[b].ID })
	for n, img := range i.images {
		i.byID[strings.TrimPrefix(img.ID, "sha256:")] = n
		for _, name := range append(append([]string(nil), img.RepoTags...), img.RepoDigests...) {
			i.byName[name] = n
		}
	}
	for id, l := range s.present {
		i.bytes, i.inodes = i.bytes+l.Bytes, i.inodes+l.Inodes
		if l.Opaque {
			i.opaque[id] = true
		}
	}
	s.snapshot.Store(i)
}

func (s *Store) imageOf(rec *imageRecord) Image {
	img := Image{
		ID: rec.ID, RepoTags: append([]string(nil), rec.Tags...), RepoDigests: append([]string(nil), rec.Digests...),
		Size: rec.Size, Config: rec.parsedImage, PulledAt: rec.PulledAt, Platform: rec.Platform,
	}
	for _, l := range rec.Layers {
		img.Layers = append(img.Layers, l.ID)
	}
	for _, name := range append(append([]string(nil), rec.Tags...), rec.Digests...) {
		img.Pinned = img.Pinned || matches(s.cfg.Pinned, name)
	}
	return img
}

// writeImageLocked puts a record on disk and in place of the one in memory.
func (s *Store) writeImageLocked(rec *imageRecord) error {
	path := s.recordPath(rec.ID)
	if err := imageKind.Write(path, rec); err != nil {
		return err
	}
	if old := s.images[rec.ID]; old != nil {
		rec.revision = old.revision + 1
	}
	s.images[rec.ID] = rec
	delete(s.unread, path)
	s.cfg.Dirty(path)
	return nil
}

func (s *Store) problem(f Finding) {
	s.unread[f.Path] = f
	s.log.Error("image store", "image", f.Image, "layer", f.Layer, "problem", f.Problem)
}
