package catalog

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// commit makes an image of one layer part of the catalog.
func commit(t *testing.T, c *Catalog, layer LayerRef) Image {
	t.Helper()
	raw := []byte(`{"author":"` + layer.ID + `"}`)
	img, err := Commit(c, &ImageRecord{
		ID: digest.FromBytes(raw).String(), Config: raw, Layers: []LayerRef{layer}, PulledAt: time.Now(), Boot: c.boot,
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestDiskFailsBesideWork has the disk fail while layers are being unpacked and placed. It says so once, to the sync
// that is under way: none of these layers may become durable, and those that begin later do.
func TestDiskFailsBesideWork(t *testing.T) {
	root := t.TempDir()
	c := openCatalog(t, root, "one")
	s := NewSyncer(c, func() error { return nil })
	good := s.Flush
	add(t, c, "r.example/synced:v1", "synced")
	unpacked, discard, err := c.disk.NewIngest("pull.ingest") // its files are written before the failure
	if err != nil {
		t.Fatal(err)
	}
	blob := digest.FromString("unpacked")
	rec := LayerRecord{ID: "b" + blob.Encoded(), DiffID: blob, Blob: blob, Boot: c.boot}
	if err := os.MkdirAll(filepath.Join(unpacked, "fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	var placed LayerRef
	s.Flush = func() error {
		placed, _ = keep(t, c, "placed")
		return unix.EIO
	}
	if err := s.SyncOnce(); err == nil {
		t.Error("the disk failed, and the round succeeded")
	}
	s.Flush = good
	if err := Describe(unpacked, rec); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.KeepLayer(unpacked, discard, rec); err != nil {
		t.Fatal(err)
	}
	lost := map[string]Image{
		"placed":   commit(t, c, placed),
		"unpacked": commit(t, c, LayerRef{ID: rec.ID, DiffID: blob, Blob: blob}),
	}
	later := add(t, c, "r.example/later:v1", "later")
	for range 2 {
		if err := s.SyncOnce(); err != nil {
			t.Error(err)
		}
	}
	for name, img := range lost {
		if got, _ := c.Snapshot().Find(img.ID); got.Durable {
			t.Errorf("the image whose layer was %s when the disk failed is durable", name)
		}
	}
	if got, _ := c.Snapshot().Find(later.ID); !got.Durable {
		t.Error("an image that was made after the failure is not durable")
	}
	c = openCatalog(t, root, "two")
	if list := c.Snapshot().List(); len(list) != 1 || list[0].ID != later.ID {
		t.Errorf("after another boot: %+v", list)
	}
}

// TestUnreadableRecordHoldsUpNoOther has the record of an image turn unreadable: the others become durable.
func TestUnreadableRecordHoldsUpNoOther(t *testing.T) {
	c := openCatalog(t, t.TempDir(), "one")
	bad, good := add(t, c, "r.example/bad:v1", "bad"), add(t, c, "r.example/good:v1", "good")
	if err := os.WriteFile(c.disk.RecordPath(bad.ID), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewSyncer(c, func() error { return nil }).SyncOnce(); err == nil {
		t.Error("nobody is told of the record that cannot be read")
	}
	if got, _ := c.Snapshot().Find(good.ID); !got.Durable {
		t.Error("the other image is not durable")
	}
	if got, _ := c.Snapshot().Find(bad.ID); got.Durable {
		t.Error("the image whose record cannot be read is durable")
	}
}

// TestTreesAreRemovedWithoutTheLock asks the catalog while it removes the tree of a layer that it has already: whoever
// waited for the lock would wait as long as that takes.
func TestTreesAreRemovedWithoutTheLock(t *testing.T) {
	c := openCatalog(t, t.TempDir(), "one")
	img := add(t, c, "r.example/a:v1", "a")
	rec := c.Snapshot().Layer(img.Layers[0])
	dir, discard, err := c.disk.NewIngest("pull.ingest")
	if err != nil {
		t.Fatal(err)
	}
	free := false
	slow := func() {
		if free = c.mu.TryLock(); free {
			c.mu.Unlock()
		}
		discard()
	}
	_, release, err := c.KeepLayer(dir, slow, rec)
	if err != nil || !free {
		t.Fatalf("the catalog is locked while files are removed: %v, %v", !free, err)
	}
	release()
}

// TestReleasedWaitsForNothing says that a container is gone while a change of the catalog takes its time. The layers
// are swept once it can be told that they belong to no image.
func TestReleasedWaitsForNothing(t *testing.T) {
	c := openCatalog(t, t.TempDir(), "one")
	img := add(t, c, "r.example/a:v1", "a")
	layer, release := keep(t, c, "loose")
	release()
	var sweeps atomic.Int64
	s := NewSweeper(c, func() (map[string]struct{}, bool) { sweeps.Add(1); return nil, true })
	c.mu.Lock()
	s.Released(img.Layers)
	s.Released([]string{layer.ID})
	go s.Run(t.Context())
	c.mu.Unlock()
	waitFor(t, "the loose layer to be swept", func() bool { return !c.Snapshot().Has(layer.ID) })
	if !c.Snapshot().Has(img.Layers[0]) {
		t.Error("the layer of an image was swept")
	}
	before := sweeps.Load()
	for range 2 { // the second look begins when the first has ended
		s.Released(img.Layers) // which belong to an image: there is nothing to sweep
		waitFor(t, "Run to look", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.released == nil })
	}
	if sweeps.Load() != before {
		t.Error("layers were swept though an image has all that lost a user: a failed pull keeps some for its next try")
	}
}

// tagsOnDisk are the tags in the record of an image.
func tagsOnDisk(t *testing.T, c *Catalog, id string) []string {
	t.Helper()
	rec, err := readRecord(c.disk.RecordPath(id), id)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Tags
}

// ceded is a catalog in which a durable image has ceded a tag to one that is not durable. A third one is durable, too.
func ceded(t *testing.T, root, tag string) (c *Catalog, old, now Image) {
	t.Helper()
	c = openCatalog(t, root, "one")
	add(t, c, "r.example/third:v1", "third")
	old = add(t, c, tag, "old")
	if err := NewSyncer(c, func() error { return nil }).SyncOnce(); err != nil {
		t.Fatal(err)
	}
	layer, release := keep(t, c, "new")
	defer release()
	raw := []byte(`{"author":"new"}`)
	now, err := Commit(c, &ImageRecord{ID: digest.FromBytes(raw).String(), Config: raw, Layers: []LayerRef{layer},
		Tags: []string{tag}, PulledAt: time.Now(), Boot: c.boot})
	if err != nil || !slices.Equal(tagsOnDisk(t, c, old.ID), []string{tag}) {
		t.Fatalf("the disk does not keep %s with the image before: %v", tag, err)
	}
	return c, old, now
}

// TestCededTagsOverACrash has the daemon end at once after each change that may be made while an image has a tag on the
// disk that it has ceded: the next one, in the same boot, has the tags where they were.
func TestCededTagsOverACrash(t *testing.T) {
	const tag, other = "r.example/a:v1", "r.example/a:other"
	record := func(c *Catalog, id string, tags ...string) *ImageRecord {
		rec := *c.Record(id)
		rec.Tags, rec.PulledAt = tags, time.Now()
		return &rec
	}
	for name, change := range map[string]func(t *testing.T, c *Catalog, old, now Image) (owner string, err error){
		"nothing": func(_ *testing.T, _ *Catalog, _, now Image) (string, error) { return now.ID, nil },
		"the image before is pulled by another name": func(_ *testing.T, c *Catalog, old, now Image) (string, error) {
			_, err := Commit(c, record(c, old.ID, other))
			return now.ID, err
		},
		"the image before is pulled by the same name": func(_ *testing.T, c *Catalog, old, _ Image) (string, error) {
			_, err := Commit(c, record(c, old.ID, tag))
			return old.ID, err
		},
		"a durable image pulled before gets the tag": func(_ *testing.T, c *Catalog, _, _ Image) (string, error) {
			third, _ := c.Snapshot().Find("r.example/third:v1")
			rec := record(c, third.ID, tag)
			rec.PulledAt = third.PulledAt
			_, err := Commit(c, rec)
			return third.ID, err
		},
		"the tag is taken away": func(_ *testing.T, c *Catalog, _, _ Image) (string, error) { return "", Untag(c, tag) },
		"the image is removed": func(_ *testing.T, c *Catalog, _, _ Image) (string, error) {
			_, err := Forget(c, tag)
			return "", err
		},
		"the image before is removed": func(_ *testing.T, c *Catalog, old, now Image) (string, error) {
			_, err := Forget(c, old.ID)
			return now.ID, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			c, old, now := ceded(t, root, tag)
			owner, err := change(t, c, old, now)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if img, ok := c.Snapshot().Find(tag); ok != (owner != "") || img.ID != owner {
					t.Errorf("%s leads to %q, wanted %q", tag, img.ID, owner)
				}
				c = openCatalog(t, root, "one")
			}
			if err := NewSyncer(c, func() error { return nil }).SyncOnce(); err != nil {
				t.Error(err)
			}
			for id := range c.inv.images {
				if has := slices.Contains(tagsOnDisk(t, c, id), tag); has != (id == owner) {
					t.Errorf("the disk has %s with %s: %v, and its image is %q", tag, id, has, owner)
				}
			}
		})
	}
}

// TestRemovedOnAFullDisk removes an image whose tag another one has on the disk, when no record can be written.
func TestRemovedOnAFullDisk(t *testing.T) {
	const tag = "r.example/a:v1"
	c, _, now := ceded(t, t.TempDir(), tag)
	if err := os.Chmod(c.disk.Path(IngestDir), 0); err != nil {
		t.Fatal(err)
	}
	full := c.disk.Path(IngestDir)
	if err := os.Rename(full, full+".gone"); err != nil { // nothing can be staged
		t.Fatal(err)
	}
	if there, err := Forget(c, now.ID); !there || err != nil {
		t.Errorf("removed: %v, %v", there, err)
	}
	if img, ok := c.Snapshot().Find(tag); ok {
		t.Errorf("%s leads to %s", tag, img.ID)
	}
}
