package image

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// catalog is what the store has: records on disk, and the same in memory.
type catalog struct {
	*disk
	boot    string
	dirty   func(path string)
	changed func() // there is something that is not durable
	leases  leases

	mu sync.Mutex // guards what follows; no disk is waited for under it but records, renames and rare leftovers
	*inventory
	unread map[string]Finding // what could not be read, by path
}

// holdPresent holds the first of the ids that is there.
func (c *catalog) holdPresent(ids ...string) (string, func()) {
	for _, id := range ids {
		if release, all := c.leases.hold(id); all {
			return id, release
		}
	}
	return "", nil
}

// holdImage holds the layers of an image called name that has them all, and that is wanted; nil when there is none.
func holdImage(c *catalog, name string, wanted func(*imageRecord) bool) (rec *imageRecord, release func()) {
	for _, rec := range imagesNamed(c, name) {
		if !wanted(rec) {
			continue
		}
		release, all := c.leases.hold(rec.layerIDs()...)
		if all {
			return rec, release
		}
		release()
	}
	return nil, nil
}

// imagesNamed are the images with the tag or repository digest. There may be several, of one index for several
// platforms.
func imagesNamed(c *catalog, name string) []*imageRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*imageRecord
	for _, id := range c.byName[name] {
		out = append(out, c.images[id])
	}
	return out
}

// place renames a layer into use. A directory in its place is one whose record could not be read. It is put aside, not
// deleted: a container may have it mounted.
func (c *catalog) place(dir string, rec layerRecord) error {
	final := c.path(layersDir, rec.ID)
	if _, err := os.Lstat(final); err == nil {
		if err := at("pull.replace", func() error { return keepAside(c.disk, rec.ID) }); err != nil {
			return err
		}
	}
	if err := at("pull.layer", func() error { return os.Rename(dir, final) }); err != nil {
		return err
	}
	delete(c.unread, final)
	c.putLayer(&layerState{layerRecord: rec})
	c.leases.admit(rec.ID)
	c.dirty(c.path(layersDir))
	c.publish()
	return nil
}

// replaceLayer puts the directory of a layer that is on the disk into the place of the one that the store has.
func replaceLayer(c *catalog, dir string, rec layerRecord) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.present[rec.ID]
	if old == nil {
		return errors.New("it was removed meanwhile")
	}
	if err := exchange(c.disk, dir, rec.ID); err != nil {
		return err
	}
	c.putLayer(&layerState{layerRecord: rec, opened: old.opened, suspect: old.suspect})
	c.dirty(c.path(layersDir))
	c.publish()
	return nil
}

// keepLayer makes a layer that was described part of the store, unless the very same is there. It is held for the
// caller.
func keepLayer(c *catalog, raw *rawLayer, rec layerRecord) (id string, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present[rec.ID] == nil {
		if err := c.place(raw.dir, rec); err != nil {
			return "", nil, err
		}
	}
	raw.discard() // what is left of the directory, and its name
	release, _ = c.leases.hold(rec.ID)
	return rec.ID, release, nil
}

// imageRecordOf is the record of an image, nil when there is none.
func imageRecordOf(c *catalog, id string) *imageRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.images[id]
}

func (c *catalog) forgetImageLocked(id string) error {
	path := c.recordPath(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.dropImage(id)
	delete(c.unread, path)
	c.dirty(path)
	c.publish()
	return nil
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
	return ownersOf(c.inventory, layerID)
}

func (c *catalog) problem(f Finding) {
	c.unread[f.Path] = f
	c.log.Error("image store", "image", f.Image, "layer", f.Layer, "problem", f.Problem)
}
