package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"berth/internal/image/damage"
	"berth/internal/image/layer"
)

// Finding is one thing that is wrong in the store.
type Finding struct {
	Image    string // its id, when it is about one
	Layer    string // its id, when it is about one
	Path     string // on disk
	Problem  string
	Repaired bool
}

// Checker verifies layers.
type Checker struct {
	Catalog *Catalog
}

// LowestFirst are the ids of all layers, each after those below it: a layer is finalized anew over sound ones.
func (c *Checker) LowestFirst() []string {
	i := c.Catalog.Snapshot()
	depth := map[string]int{}
	for _, img := range i.images {
		for n, l := range img.LayerRefs {
			depth[l.ID] = max(depth[l.ID], n)
		}
	}
	return slices.SortedFunc(i.layers.keys(), func(a, b string) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), strings.Compare(a, b))
	})
}

// Check verifies one layer, which is held meanwhile. The error is the caller's end.
func (c *Checker) Check(ctx context.Context, id string) ([]Finding, error) {
	held, release := c.Catalog.Leases.HoldFirst(id)
	if held == "" {
		return nil, nil
	}
	defer release()
	var found []Finding
	add := func(path, problem string) {
		found = append(found, Finding{Image: c.imageWith(id), Layer: id, Path: path, Problem: problem})
	}
	if err := layer.Verify(ctx, c.Catalog.disk.LayerDir(id), add); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.Catalog.disk.Path(LayersDir, id, layer.ManifestFile), err.Error())
	}
	if err := c.checkTar(ctx, id); err != nil && len(found) == 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.Catalog.disk.Path(LayersDir, id, layer.TarSplitFile), err.Error())
	}
	return found, nil
}

// checkTar proves what Verify cannot: that the tar-split metadata is there, and the files that the manifest does not
// know.
func (c *Checker) checkTar(ctx context.Context, id string) error {
	rec := c.Catalog.Snapshot().Layer(id)
	if !rec.TarSplit {
		return nil
	}
	tar, err := layer.OpenTar(c.Catalog.disk.LayerDir(id))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(c.Catalog.disk.Path(LayersDir, id, layer.ReplacedDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	sum := rec.DiffID.Algorithm().Digester()
	if err := tar.CopyTo(ctx, sum.Hash()); err != nil {
		return err
	}
	if sum.Digest() != rec.DiffID {
		return fmt.Errorf("the layer's tar comes out with the digest %s", sum.Digest())
	}
	return nil
}

// imageWith is the id of an image that has the layer.
func (c *Checker) imageWith(layerID string) string {
	for _, rec := range c.Catalog.Owners(layerID) {
		return rec.ID
	}
	return ""
}

// LogDamage tells of a layer that is damaged, with the files that have changed where that can be told.
func LogDamage(ctx context.Context, c *Catalog, id string, err error) {
	if problem := damage.Differences(ctx, c.disk.LayerDir(id)); problem != nil {
		err = problem
	}
	image := ""
	for _, rec := range c.Owners(id) {
		image = rec.ID
	}
	c.disk.log.Error("the image store is damaged", "image", image, "layer", id, "problem", err.Error())
}
