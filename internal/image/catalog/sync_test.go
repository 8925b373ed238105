package catalog

import (
	"os"
	"path/filepath"
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
	s := NewSweeper(c, func() (map[string]struct{}, bool) { return nil, true })
	c.mu.Lock()
	s.Released(img.Layers)
	s.Released([]string{layer.ID})
	go s.Run(t.Context())
	c.mu.Unlock()
	waitFor(t, "the loose layer to be swept", func() bool { return !c.Snapshot().Has(layer.ID) })
	if !c.Snapshot().Has(img.Layers[0]) {
		t.Error("the layer of an image was swept")
	}
	kept, release := keep(t, c, "kept")
	release()
	s.Released(img.Layers) // which belong to an image: nothing is swept, not even what no image has
	waitFor(t, "Run to look", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.released == nil })
	if !c.Snapshot().Has(kept.ID) {
		t.Error("a layer was swept that a failed pull keeps")
	}
}
