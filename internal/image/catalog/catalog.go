package catalog

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
)

// Catalog is what the store has: records on disk, and the same in memory. What changes it is a method of it, in this
// file, and holds its lock; what takes long (to stage, to sync, to discard) goes on outside.
type Catalog struct {
	disk    *Disk
	boot    string
	dirty   func(path string)
	changed func() // there is something that is not durable
	Leases  Leases

	mu     sync.Mutex // guards what follows; no disk is waited for under it but records, renames and rare leftovers
	inv    *inventory
	unread unread
}

// New returns an empty catalog of the store at d. suits compares two platforms: the greater one suits the node better,
// and a name that images of both have leads to its image.
func New(d *Disk, boot string, pinned []string, suits func(a, b string) int, dirty func(path string)) *Catalog {
	c := &Catalog{
		disk: d, boot: boot, dirty: dirty, changed: func() {}, inv: newInventory(pinned, d.RecordPath), unread: unread{},
	}
	c.inv.suits = suits
	return c
}

// unread is what could not be read, by path.
type unread map[string]Finding

// images reports whether there are image records among it.
func (u unread) images() bool {
	for _, f := range u {
		if f.Image != "" {
			return true
		}
	}
	return false
}

// Snapshot is what readers see of the catalog now. It never waits.
func (c *Catalog) Snapshot() *Index { return c.inv.snapshot.Load() }

// HoldImage holds the layers of an image called name that has them all, and that is wanted; nil when there is none.
func (c *Catalog) HoldImage(name string, wanted func(*ImageRecord) bool) (rec *ImageRecord, release func()) {
	c.mu.Lock()
	var named []*ImageRecord // there may be several, of one index for several platforms
	for _, id := range c.inv.byName[name] {
		named = append(named, c.inv.images[id])
	}
	c.mu.Unlock()
	for _, rec := range named {
		if !wanted(rec) {
			continue
		}
		release, all := c.Leases.Hold(rec.LayerIDs()...)
		if all {
			return rec, release
		}
		release()
	}
	return nil, nil
}

// Use finds an image by name or whole id, and holds its layers until release is called. It waits for no change.
func Use(c *Catalog, refOrID string) (img Image, release func(), err error) {
	for {
		now := c.Snapshot()
		img, ok := now.FindWhole(refOrID)
		if !ok {
			return Image{}, nil, fail.New(errdefs.ErrNotFound, "no such image: pull it first")
		}
		release, all := c.Leases.Hold(img.Layers...)
		if all {
			return img, release, nil
		}
		release()
		if c.Snapshot() == now { // else it was removed meanwhile
			return Image{}, nil, fail.New(errdefs.ErrNotFound, "layers of it are gone: pull it again")
		}
	}
}

// Record is the record of an image, nil when there is none.
func (c *Catalog) Record(id string) *ImageRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inv.images[id]
}

// Owners are the images that have a layer, by id.
func (c *Catalog) Owners(layerID string) []*ImageRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ownersOf(c.inv, layerID)
}

// KeepLayer makes a layer that was described in dir part of the store, unless the very same is there. It is held for
// the caller, whose dir is gone then.
func (c *Catalog) KeepLayer(dir string, discard func(), rec LayerRecord) (id string, release func(), err error) {
	c.mu.Lock()
	release, err = holdLocked(c, dir, rec)
	c.mu.Unlock()
	if err != nil {
		return "", nil, err
	}
	discard() // what is left of the directory, which is a whole layer when the very same was there; and its name
	return rec.ID, release, nil
}

// holdLocked holds a layer, after it has put it in its place when it was not there.
func holdLocked(c *Catalog, dir string, rec LayerRecord) (release func(), err error) {
	if c.inv.present[rec.ID] == nil {
		if err := placeLocked(c, dir, rec); err != nil {
			return nil, err
		}
	}
	release, _ = c.Leases.Hold(rec.ID)
	return release, nil
}

// placeLocked renames a layer into use. A directory in its place is one whose record could not be read. It is put
// aside, not deleted: a container may have it mounted.
func placeLocked(c *Catalog, dir string, rec LayerRecord) error {
	final := c.disk.LayerDir(rec.ID)
	if c.disk.failedSince(dir) {
		rec.Doubtful = true
		if err := Describe(dir, rec); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(final); err == nil {
		if err := At("pull.replace", func() error { return keepAside(c.disk, rec.ID) }); err != nil {
			return err
		}
	}
	if err := At("pull.layer", func() error { return os.Rename(dir, final) }); err != nil {
		return err
	}
	delete(c.unread, final)
	c.inv.putLayer(&layerState{LayerRecord: rec})
	c.Leases.admit(rec.ID)
	c.dirty(c.disk.Path(LayersDir))
	c.inv.publish()
	return nil
}

// ReplaceLayer puts the directory of a layer that is on the disk into the place of the one that the store has.
func (c *Catalog) ReplaceLayer(dir string, rec LayerRecord) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.inv.present[rec.ID]
	if old == nil {
		return errors.New("it was removed meanwhile")
	}
	if err := exchange(c.disk, dir, rec.ID); err != nil {
		return err
	}
	c.inv.putLayer(&layerState{LayerRecord: rec, opened: old.opened, suspect: old.suspect})
	c.dirty(c.disk.Path(LayersDir))
	c.inv.publish()
	return nil
}

// propose returns the changes that plan makes of the store as it is now.
func (c *Catalog) propose(plan func(*inventory) []*edit) []*edit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return plan(c.inv)
}

// apply writes the records, unless others changed what they were made from: it is not current then.
func (c *Catalog) apply(plan func(*inventory) []*edit, edits []*edit) (img Image, current bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !sameEdits(edits, plan(c.inv)) {
		return Image{}, false, nil
	}
	for _, e := range edits {
		if err := At(e.step, func() error { return putLocked(c, e) }); err != nil {
			return Image{}, true, err
		}
		defer c.inv.publish() // also when the next one fails
	}
	c.changed()
	return imageFrom(edits[0].rec, c.disk.RecordPath(edits[0].rec.ID), &c.inv.pinned), true, nil
}

// putLocked puts a record on disk and in place of the one in memory.
func putLocked(c *Catalog, e *edit) error {
	if err := e.write(c.disk); err != nil {
		return err
	}
	path := c.disk.RecordPath(e.rec.ID)
	c.inv.putImage(e.rec.slim())
	delete(c.unread, path)
	if !e.idle() {
		c.dirty(path)
	}
	return nil
}

// drop removes the record of the image that an id, tag or digest names, for Forget.
func (c *Catalog) drop(refOrID string) (there bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img, ok := c.Snapshot().Find(refOrID)
	if !ok {
		return false, nil
	}
	return true, At("remove.record", func() error {
		path := c.disk.RecordPath(img.ID)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.inv.dropImage(img.ID)
		delete(c.unread, path)
		c.dirty(path)
		c.inv.publish()
		c.changed() // others may keep its tags on the disk
		return nil
	})
}

// AnyLoose reports whether one of the layers is there and belongs to no image.
func (c *Catalog) AnyLoose(layers []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(layers, func(id string) bool { _, loose := c.inv.loose[id]; return loose })
}

// SwapFreed reports whether an image has lost layers, which no other one has, since it was called last with false. With
// true it is as if one had.
func (c *Catalog) SwapFreed(freed bool) (was bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, c.inv.freed = c.inv.freed, freed
	return was
}

// unlink takes dead layers out of use; discarding them is the slow part and needs no lock.
func (c *Catalog) unlink(epoch uint64, inUse map[string]struct{}, whole bool) (dead []func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.inv.publish()
	for id := range c.inv.loose {
		l := c.inv.present[id]
		_, used := inUse[id]
		kept := used || l.suspect && c.unread.images() || l.opened && !whole
		if kept || !c.Leases.expel(id, epoch) {
			continue
		}
		var discard func()
		if err := At("remove.unlink", func() (err error) { discard, err = c.disk.setAside(id); return err }); err != nil {
			c.Leases.admit(id)
			return dead, err
		}
		c.inv.dropLayer(id)
		c.dirty(c.disk.Path(LayersDir))
		dead = append(dead, discard)
	}
	return dead, nil
}

// Repin replaces the patterns of names, or the ids, that are pinned.
func (c *Catalog) Repin(by Pinner, pinned []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	repin(c.inv, by, pinned)
	c.inv.publish()
}

// Unreadable are what could not be read when the store was opened, and what has not been repaired since.
func (c *Catalog) Unreadable() []Finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Finding, 0, len(c.unread))
	for _, f := range c.unread {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// removeUnread takes what cannot be read out of use, unless a container uses it. inUse is as unlink has it. discard
// removes the rest; it is the slow part and needs no lock.
func (c *Catalog) removeUnread(f Finding, inUse map[string]struct{}, whole bool) (discard func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	discard = func() {}
	if _, still := c.unread[f.Path]; !still {
		return discard, nil // a pull has put what can be read there
	}
	if f.Layer != "" {
		if _, busy := inUse[f.Layer]; busy || !whole {
			return nil, errInUse
		}
		err := At("repair.unread", func() (err error) { discard, err = c.disk.setAside(f.Layer); return err })
		if err != nil {
			return nil, err
		}
	} else {
		err := At("repair.record", func() error { return os.Remove(f.Path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	delete(c.unread, f.Path)
	return discard, nil
}

var errInUse = errors.New("containers use it: remove them first, then check again")

// unsynced is what is not durable yet and may become so.
func (c *Catalog) unsynced() ([]*ImageRecord, []*layerState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unsyncedOf(c.inv)
}

// doubtLayers marks all layers that are not durable, so that they never become so. Another boot drops them. Those that
// are being unpacked now are marked when they are placed.
func (c *Catalog) doubtLayers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disk.failures.Add(1)
	_, layers := unsyncedOf(c.inv)
	for _, l := range layers {
		l.Doubtful = true
		c.inv.putLayer(l)
		if err := layerKind.Write(c.disk.LayerRecordPath(l.ID), l.LayerRecord); err != nil {
			c.disk.log.Warn("note that a layer may not be on the disk", "layer", l.ID, "error", err)
		}
	}
}

// layerDurable gives a layer that is on the disk the record that says so, which is staged.
func (c *Catalog) layerDurable(l *layerState, staged string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inv.present[l.ID] != l {
		return nil // it was removed, or fetched again
	}
	path := c.disk.LayerRecordPath(l.ID)
	if err := At("sync.layer", func() error { return os.Rename(staged, path) }); err != nil {
		return err
	}
	l.LayerRecord = l.asDurable()
	c.inv.putLayer(l)
	c.inv.publish()
	c.dirty(path)
	return nil
}

// imageDurable does the same for an image, all of whose layers are on the disk.
func (c *Catalog) imageDurable(rec *ImageRecord, staged string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inv.images[rec.ID] != rec || !layersDurable(c.inv, rec) {
		return nil // another pull came in between, and asked for its own batch
	}
	path := c.disk.RecordPath(rec.ID)
	if err := At("sync.record", func() error { return os.Rename(staged, path) }); err != nil {
		return err
	}
	c.inv.putImage(rec.asDurable())
	c.inv.publish()
	c.dirty(path)
	return nil
}
