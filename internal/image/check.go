package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"

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

// Problems are what Open could not read and what has not been repaired since, and a file system that is read-only now.
func (s *Store) Problems() []Finding {
	found := unreadable(s.catalog)
	if readOnly(s.disk) {
		found = append(found, Finding{Path: s.root, Problem: "its file system is read-only: images that are whole are " +
			"served, none can be pulled or removed; look at dmesg, repair it and mount it anew"})
	}
	return found
}

// unreadable are what Open could not read and what has not been repaired since.
func unreadable(s *catalog) []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Finding, 0, len(s.unread))
	for _, f := range s.unread {
		out = append(out, f)
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Path < out[b].Path })
	return out
}

// Check compares all layers with their manifests, file by file, and reports what differs and what could not be read.
// With repair, unreadable records are removed, and damaged layers are fetched again from where the image came from,
// while the image stays usable. One that cannot be fetched now stays as it is, and is reported.
func (s *Store) Check(ctx context.Context, repair bool, report func(Finding)) error {
	c := &checker{s.catalog, s.cfg.InUse}
	mend := &repairer{s: s, left: map[string]struct{}{}}
	for _, f := range s.Problems() {
		if repair && f.Path != s.root {
			f.Repaired = c.removeUnread(f) == nil
		}
		report(f)
	}
	for _, id := range c.lowestFirst() {
		found, err := c.checkLayer(ctx, id)
		if err != nil {
			return failed("check image store", err)
		}
		if len(found) > 0 && repair {
			mend.repair(ctx, id, found)
		}
		for _, f := range found {
			report(f)
		}
	}
	return failed("check image store", ctx.Err())
}

// checker verifies layers.
type checker struct {
	*catalog
	inUse func() (used map[string]struct{}, whole bool)
}

// lowestFirst are the ids of all layers, each after those below it: a layer is settled anew over sound ones.
func (c *checker) lowestFirst() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	depth := map[string]int{}
	for _, rec := range c.images {
		for n, l := range rec.Layers {
			depth[l.ID] = max(depth[l.ID], n)
		}
	}
	return slices.SortedFunc(maps.Keys(c.present), func(a, b string) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), strings.Compare(a, b))
	})
}

func (c *checker) removeUnread(f Finding) error {
	used, whole := c.inUse()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, still := c.unread[f.Path]; !still {
		return nil // a pull has put what can be read there
	}
	if f.Layer != "" {
		if _, busy := used[f.Layer]; busy || !whole {
			return errInUse
		}
		var discard func()
		if err := at("repair.unread", func() (err error) { discard, err = c.setAside(f.Layer); return err }); err != nil {
			return err
		}
		defer discard()
	} else if err := at("repair.record", func() error { return os.Remove(f.Path) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(c.unread, f.Path)
	return nil
}

// checkLayer verifies one layer, which is held meanwhile. The error is the caller's end.
func (c *checker) checkLayer(ctx context.Context, id string) ([]Finding, error) {
	held, release := c.holdPresent(id)
	if held == "" {
		return nil, nil
	}
	defer release()
	var found []Finding
	add := func(path, problem string) {
		found = append(found, Finding{Image: c.imageWith(id), Layer: id, Path: path, Problem: problem})
	}
	if err := layer.Verify(ctx, c.path(layersDir, id), add); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.path(layersDir, id, layer.ManifestFile), err.Error())
	}
	if err := c.checkTar(ctx, id); err != nil && len(found) == 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(c.path(layersDir, id, layer.SkeletonFile), err.Error())
	}
	return found, nil
}

// layerRecord is the record of a layer, empty when there is none.
func (v *inventory) layerRecord(id string) layerRecord {
	rec, _ := v.snapshot.Load().layers.get(id)
	return rec
}

// checkTar proves what Verify cannot: that the skeleton is there, and the files that the manifest does not know.
func (c *checker) checkTar(ctx context.Context, id string) error {
	rec := c.layerRecord(id)
	if !rec.Skeleton {
		return nil
	}
	tar, err := layer.OpenTar(c.path(layersDir, id))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(c.path(layersDir, id, layer.ReplacedDir)); errors.Is(err, fs.ErrNotExist) {
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
	for _, rec := range c.owners(layerID) {
		return rec.ID
	}
	return ""
}

var errInUse = errors.New("containers use it: remove them first, then check again")
