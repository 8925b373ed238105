package image

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// catalog is what the store has: records on disk, and the same in memory.
type catalog struct {
	*disk
	boot     string
	pinned   []string
	dirty    func(path string)
	changed  func() // there is something that is not durable
	snapshot atomic.Pointer[index]

	mu      sync.Mutex // guards what follows; no disk is waited for under it but records, renames and rare leftovers
	images  map[string]*imageRecord
	present map[string]*layerState
	round   uint64             // of sweeps and repairs
	unread  map[string]Finding // what could not be read, by path
}

// index is what reads answer from.
type index struct {
	images []Image
	byID   map[string]int
	byName map[string]int
	bytes  uint64
	inodes uint64
	layers map[string]layerRecord
	at     time.Time
}

func (i *index) find(ref string) (Image, bool) {
	if img, ok := i.findWhole(ref); ok {
		return img, true
	}
	if !isShortID(ref) {
		return Image{}, false
	}
	found := -1
	for hex, n := range i.byID {
		if strings.HasPrefix(hex, ref) {
			if found >= 0 {
				return Image{}, false
			}
			found = n
		}
	}
	if found < 0 {
		return Image{}, false
	}
	return i.images[found], true
}

// findWhole finds an image by a name or its whole id.
func (i *index) findWhole(ref string) (Image, bool) {
	if n, ok := i.byID[strings.TrimPrefix(ref, "sha256:")]; ok {
		return i.images[n], true
	}
	if r, err := ParseReference(ref); err == nil {
		if n, ok := i.byName[r.String()]; ok {
			return i.images[n], true
		}
	}
	return Image{}, false
}

// holdLocked keeps layers from being swept until release is called, once or more.
func (c *catalog) holdLocked(ids []string) (release func()) {
	var held []*layerState
	for _, id := range ids {
		if l := c.present[id]; l != nil {
			l.holds++
			l.round = c.round
			held = append(held, l)
		}
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, l := range held {
				l.holds--
				l.round = c.round
			}
		})
	}
}

// holdPresent holds the first of the ids that is there.
func (c *catalog) holdPresent(ids ...string) (string, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if c.present[id] != nil {
			return id, c.holdLocked([]string{id})
		}
	}
	return "", nil
}

// holdImage holds the layers of an image that has them all, and that is wanted; nil when there is none.
func holdImage(c *catalog, wanted func(*imageRecord) bool) (rec *imageRecord, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rec := range c.images {
		if !wanted(rec) {
			continue
		}
		var ids []string
		for _, l := range rec.Layers {
			if c.present[l.ID] != nil {
				ids = append(ids, l.ID)
			}
		}
		if len(ids) == len(rec.Layers) {
			return rec, c.holdLocked(ids)
		}
	}
	return nil, nil
}

// place renames a layer into use. A directory in its place is one whose record could not be read. It is put aside until
// the next Open, not deleted: a container may have it mounted.
func (c *catalog) place(dir string, rec layerRecord) error {
	final := c.path(layersDir, rec.ID)
	if _, err := os.Lstat(final); err == nil {
		if err := at("pull.replace", func() error { _, err := c.setAside(rec.ID); return err }); err != nil {
			return err
		}
	}
	if err := at("pull.layer", func() error { return os.Rename(dir, final) }); err != nil {
		return err
	}
	delete(c.unread, final)
	c.present[rec.ID] = &layerState{layerRecord: rec}
	c.dirty(c.path(layersDir))
	c.publish()
	return nil
}

func (c *catalog) forgetImageLocked(id string) error {
	path := c.recordPath(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(c.images, id)
	delete(c.unread, path)
	c.dirty(path)
	c.publish()
	return nil
}

// markedLocked is the set of layers that images name.
func (c *catalog) markedLocked() map[string]struct{} {
	marked := map[string]struct{}{}
	for _, rec := range c.images {
		for _, l := range rec.Layers {
			marked[l.ID] = struct{}{}
		}
	}
	return marked
}

// unreadImages says whether there are image records that nobody could read.
func (c *catalog) unreadImages() bool {
	for _, f := range c.unread {
		if f.Image != "" {
			return true
		}
	}
	return false
}

func (c *catalog) owners(layerID string) []*imageRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*imageRecord
	for _, rec := range c.images {
		if slices.ContainsFunc(rec.Layers, func(l layerRef) bool { return l.ID == layerID }) {
			out = append(out, rec)
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].ID < out[b].ID })
	return out
}

// publish replaces the snapshot by what is now. Callers hold mu, but Open.
func (c *catalog) publish() {
	i := &index{byID: map[string]int{}, byName: map[string]int{}, layers: map[string]layerRecord{}, at: time.Now()}
	for _, rec := range c.images {
		i.images = append(i.images, c.imageOf(rec))
	}
	sort.Slice(i.images, func(a, b int) bool { return i.images[a].ID < i.images[b].ID })
	for n, img := range i.images {
		i.byID[strings.TrimPrefix(img.ID, "sha256:")] = n
		for _, name := range append(append([]string(nil), img.RepoTags...), img.RepoDigests...) {
			i.byName[name] = n
		}
	}
	for id, l := range c.present {
		i.bytes, i.inodes = i.bytes+l.Bytes, i.inodes+l.Inodes
		i.layers[id] = l.layerRecord
	}
	c.snapshot.Store(i)
}

func (c *catalog) imageOf(rec *imageRecord) Image {
	img := Image{
		ID: rec.ID, RepoTags: append([]string(nil), rec.Tags...), RepoDigests: append([]string(nil), rec.Digests...),
		Size: rec.Size, Config: rec.parsedImage, PulledAt: rec.PulledAt, Platform: rec.Platform,
		Manifest: rec.Manifest, Durable: rec.Durable, record: c.recordPath(rec.ID), refs: rec.Layers,
	}
	for _, l := range rec.Layers {
		img.Layers = append(img.Layers, l.ID)
	}
	for _, name := range append(append([]string(nil), rec.Tags...), rec.Digests...) {
		img.Pinned = img.Pinned || matches(c.pinned, name)
	}
	return img
}

func (c *catalog) problem(f Finding) {
	c.unread[f.Path] = f
	c.log.Error("image store", "image", f.Image, "layer", f.Layer, "problem", f.Problem)
}
