package catalog

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/test/timeouts"
)

// openCatalog opens the catalog at root, as a store does it after the boot of that name.
func openCatalog(t *testing.T, root, boot string) *Catalog {
	t.Helper()
	d := NewDisk(root, slog.New(slog.DiscardHandler))
	if err := d.MakeDirs(); err != nil {
		t.Fatal(err)
	}
	c := New(d, boot, nil, nil, func(string) {})
	left, err := Load(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, discard := range left {
		discard()
	}
	return c
}

// keep makes a layer of one file part of the catalog, and returns what a record has of it.
func keep(t *testing.T, c *Catalog, name string) (LayerRef, func()) {
	t.Helper()
	dir, discard, err := c.disk.NewIngest("pull.ingest")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "fs", name), 0o755); err != nil {
		t.Fatal(err)
	}
	blob := digest.FromString(name)
	rec := LayerRecord{ID: "b" + blob.Encoded(), DiffID: blob, Blob: blob, Boot: c.boot, Bytes: 1, Inodes: 1}
	if err := Describe(dir, rec); err != nil {
		t.Fatal(err)
	}
	id, release, err := c.KeepLayer(dir, discard, rec)
	if err != nil || id != rec.ID {
		t.Fatalf("kept as %s: %v", id, err)
	}
	return LayerRef{ID: id, DiffID: blob, Blob: blob, Size: 1}, release
}

// add makes an image of layers part of the catalog, under a tag.
func add(t *testing.T, c *Catalog, tag string, layers ...string) Image {
	t.Helper()
	raw, err := json.Marshal(ocispec.Image{Author: tag, Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	rec := &ImageRecord{
		ID: digest.FromBytes(raw).String(), Config: raw, Tags: []string{tag}, PulledAt: time.Now(), Boot: c.boot,
	}
	for _, name := range layers {
		ref, release := keep(t, c, name)
		defer release()
		rec.Layers = append(rec.Layers, ref)
	}
	img, err := Commit(c, rec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// sweeperOf sweeps what no container uses.
func sweeperOf(c *Catalog, used ...string) *Sweeper {
	return &Sweeper{Catalog: c, InUse: func() (map[string]struct{}, bool) { return memberSet(used), true }}
}

// waitFor waits until done reports true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(20 * time.Second)); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func layersThere(t *testing.T, c *Catalog) int {
	t.Helper()
	entries, err := os.ReadDir(c.disk.Path(LayersDir))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestCatalogAlone records images, opens the catalog again in the same boot and in another one, and removes an image:
// what becomes durable stays, and what nothing uses goes.
func TestCatalogAlone(t *testing.T) {
	root := t.TempDir()
	c := openCatalog(t, root, "one")
	a := add(t, c, "r.example/a:v1", "base", "a")
	if err := NewSyncer(c, func() error { return nil }).SyncOnce(); err != nil {
		t.Fatal(err)
	}
	b := add(t, c, "r.example/b:v1", "base", "b")
	c = openCatalog(t, root, "one")
	if _, there := c.Snapshot().Find(b.ID); !there || len(c.Unreadable()) != 0 {
		t.Errorf("the same boot does not know %s: %v", b.ID, c.Unreadable())
	}
	c = openCatalog(t, root, "two")
	got, there := c.Snapshot().Find("r.example/a:v1")
	if list := c.Snapshot().List(); !there || got.ID != a.ID || !got.Durable || len(list) != 1 || layersThere(t, c) != 2 {
		t.Errorf("after another boot: %+v, %d layers", list, layersThere(t, c))
	}
	if there, err := Forget(c, a.ID); !there || err != nil {
		t.Errorf("removed: %v, %v", there, err)
	}
	if err := sweeperOf(c, got.Layers[0]).Sweep(t.Context()); err != nil || layersThere(t, c) != 1 {
		t.Errorf("%d layers are left of which a container uses one: %v", layersThere(t, c), err)
	}
	if err := sweeperOf(c).Sweep(t.Context()); err != nil || layersThere(t, c) != 0 {
		t.Errorf("%d layers are left: %v", layersThere(t, c), err)
	}
}

// TestUseWaitsForNoChange has a container start while a change of the catalog takes its time.
func TestUseWaitsForNoChange(t *testing.T) {
	c := openCatalog(t, t.TempDir(), "one")
	img := add(t, c, "r.example/a:v1", "a")
	c.mu.Lock() // somebody writes a record
	defer c.mu.Unlock()
	used := make(chan error, 1)
	go func() {
		_, release, err := Use(c, img.ID)
		if err == nil {
			release()
		}
		used <- err
	}()
	select {
	case err := <-used:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(timeouts.For(20 * time.Second)):
		t.Error("a container that starts waits for a change of the catalog")
	}
}

// TestUseOfWhatGoes uses an image whose layers the sweep is taking, and one that was removed.
func TestUseOfWhatGoes(t *testing.T) {
	c := openCatalog(t, t.TempDir(), "one")
	img := add(t, c, "r.example/a:v1", "a")
	if !c.Leases.expel(img.Layers[0], c.Leases.begin()) {
		t.Fatal("the layer is used")
	}
	if _, _, err := Use(c, img.ID); !fail.Is(err, errdefs.ErrNotFound) {
		t.Errorf("used without its layer: %v", err)
	}
	if rec, _ := c.HoldImage("r.example/a:v1", func(*ImageRecord) bool { return true }); rec != nil {
		t.Errorf("%s is held as if it were whole", rec.ID)
	}
	c.Leases.admit(img.Layers[0])
	_, release, err := Use(c, img.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Forget(c, img.ID); err != nil {
		t.Error(err)
	}
	if err := sweeperOf(c).Sweep(t.Context()); err != nil || layersThere(t, c) != 1 {
		t.Errorf("swept from under its user: %v", err)
	}
	release()
	if _, _, err := Use(c, img.ID); !fail.Is(err, errdefs.ErrNotFound) {
		t.Errorf("used after it was removed: %v", err)
	}
}
