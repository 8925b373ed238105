package catalog

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// The files in testdata/frozen were written by the first release and are never changed: whatever comes after reads
// them.
func TestFrozenRecords(t *testing.T) {
	var img ImageRecord
	if v, err := ImageKind.Read("testdata/frozen/image-v1", &img); err != nil || v != 1 {
		t.Fatalf("image: version %d, %v", v, err)
	}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	if !strings.HasPrefix(img.ID, "sha256:") || digest.FromBytes(img.Config).String() != img.ID ||
		img.Tags[0] != "registry.example.com/shop/web:1" ||
		len(img.Layers) != 2 || img.Size != 4242 || !img.PulledAt.Equal(at) || !img.Durable || img.Platform != "linux/amd64" {
		t.Errorf("image: %+v", img)
	}
	var l LayerRecord
	if v, err := layerKind.Read("testdata/frozen/layer-v1", &l); err != nil || v != 1 {
		t.Fatalf("layer: version %d, %v", v, err)
	}
	if l.Bytes != 1<<20 || l.Inodes != 12 || l.Chain == "" || l.DiffID == "" || !l.Durable || l.ID != img.Layers[1].ID {
		t.Errorf("layer: %+v", l)
	}
}

// TestFreeze writes them; it is for the day when a format changes, with a new name.
func TestFreeze(t *testing.T) {
	dir := os.Getenv("BERTH_FREEZE")
	if dir == "" {
		t.Skip("BERTH_FREEZE names no directory to write to")
	}
	config := []byte(`{"architecture":"amd64","os":"linux","config":{"Cmd":["/web"],"Env":["PATH=/bin"]},` +
		`"rootfs":{"type":"layers","diff_ids":[]}}`)
	one, two := digest.FromString("one"), digest.FromString("two")
	img := ImageRecord{
		ID: digest.FromBytes(config).String(), Tags: []string{"registry.example.com/shop/web:1"},
		Digests:  []string{"registry.example.com/shop/web@" + one.String()},
		Manifest: one.String(), Platform: "linux/amd64", Size: 4242, Config: config,
		Layers:   []LayerRef{{ID: one.Encoded()}, {ID: two.Encoded()}},
		PulledAt: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Boot: "0e3b2f7c-8a5d-4b1e-9c6f-2d7a1b3c4d5e", Durable: true,
	}
	l := LayerRecord{ID: two.Encoded(), DiffID: one, Chain: two, Bytes: 1 << 20, Inodes: 12, Boot: img.Boot, Durable: true}
	if err := ImageKind.Write(dir+"/image-v1", img); err != nil {
		t.Fatal(err)
	}
	if err := layerKind.Write(dir+"/layer-v1", l); err != nil {
		t.Fatal(err)
	}
}
