package image

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

// checker verifies layers.
type checker struct {
	catalog *catalog
}

// lowestFirst are the ids of all layers, each after those below it: a layer is settled anew over sound ones.
func (c *checker) lowestFirst() []string {
	i := c.catalog.snapshot()
	depth := map[string]int{}
	for _, img := range i.images {
		for n, l := range img.refs {
			depth[l.ID] = max(depth[l.ID], n)
		}
	}
	return slices.SortedFunc(i.layers.keys(), func(a, b string) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), strings.Compare(a, b))
	})
}

// checkLayer verifies one layer, which is held meanwhile. The error is the caller's end.
func (c *checker) checkLayer(ctx context.Context, id string) ([]Finding, error) {
	held, release := c.catalog.leases.holdFirst(id)
	if held == "" {
		return nil, nil
	}
	defer release()
	var found []Finding
	add := func(path, problem string) {
		found = append(found, Finding{Image: c.imageWith(id), Layer: id, Path: path, Problem: problem})
	}
	if err := layer.Verify(ctx, c.catalog.disk.layerDir(id), add); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.catalog.disk.path(layersDir, id, layer.ManifestFile), err.Error())
	}
	if err := c.checkTar(ctx, id); err != nil && len(found) == 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.catalog.disk.path(layersDir, id, layer.SkeletonFile), err.Error())
	}
	return found, nil
}

// checkTar proves what Verify cannot: that the skeleton is there, and the files that the manifest does not know.
func (c *checker) checkTar(ctx context.Context, id string) error {
	rec := c.catalog.snapshot().layer(id)
	if !rec.Skeleton {
		return nil
	}
	tar, err := layer.OpenTar(c.catalog.disk.layerDir(id))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(c.catalog.disk.path(layersDir, id, layer.ReplacedDir)); errors.Is(err, fs.ErrNotExist) {
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
func (c *checker) imageWith(layerID string) string {
	for _, rec := range c.catalog.owners(layerID) {
		return rec.ID
	}
	return ""
}

// logDamage tells of a layer that is damaged, with the files that have changed where that can be told.
func logDamage(ctx context.Context, c *catalog, id string, err error) {
	if problem := damage.Differences(ctx, c.disk.layerDir(id)); problem != nil {
		err = problem
	}
	image := ""
	for _, rec := range c.owners(id) {
		image = rec.ID
	}
	c.disk.log.Error("image store", "image", image, "layer", id, "problem", err.Error())
}
