package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sort"

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

// Problems are what Open could not read and what has not been repaired since.
func (s *Store) Problems() []Finding {
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
// With repair, unreadable records are removed, and damaged layers are fetched again from where the image came from; an
// image that cannot be fetched again is removed, so that the next pull brings it whole.
func (s *Store) Check(ctx context.Context, repair bool, report func(Finding)) error {
	c := &checker{s.catalog, s.Pull, s.cfg.InUse}
	for _, f := range s.Problems() {
		if repair {
			f.Repaired = c.removeUnread(f) == nil
		}
		report(f)
	}
	for _, id := range c.presentIDs() {
		found, err := c.checkLayer(ctx, id)
		if err != nil {
			return failed("check image store", err)
		}
		if len(found) > 0 && repair {
			c.repairLayer(ctx, id, found)
		}
		for _, f := range found {
			report(f)
		}
	}
	return failed("check image store", ctx.Err())
}

// checker verifies layers, and fetches damaged ones again.
type checker struct {
	*catalog
	pull  func(context.Context, PullRequest) (Image, error)
	inUse func() (used map[string]struct{}, whole bool)
}

func (c *checker) presentIDs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.present))
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
func (c *checker) layerRecord(id string) layerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.present[id]; l != nil {
		return l.layerRecord
	}
	return layerRecord{}
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

// repairLayer takes a damaged layer out of use and fetches it again, and says in found how that went.
func (c *checker) repairLayer(ctx context.Context, id string, found []Finding) {
	err := c.replaceLayer(ctx, id)
	for i := range found {
		found[i].Repaired = err == nil
		if err != nil {
			found[i].Problem += "; not repaired: " + err.Error()
		}
	}
}

var errInUse = errors.New("containers use it: remove them first, then check again")

func (c *checker) replaceLayer(ctx context.Context, id string) error {
	round := beginRound(c.catalog)
	all, whole := c.inUse()
	if _, used := all[id]; used || !whole {
		return errInUse
	}
	owners := c.owners(id)
	discard, err := c.withdraw(id, round)
	if err != nil {
		return err
	}
	defer discard()
	for _, rec := range owners {
		if perr := c.pullAgain(ctx, rec); perr != nil && err == nil {
			err = perr
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present[id] != nil || err == nil {
		return nil
	}
	for _, rec := range owners {
		if ferr := c.forgetImageLocked(rec.ID); ferr != nil {
			return ferr
		}
	}
	return fmt.Errorf("the image was removed, for it cannot be fetched again now (a pull, with its credentials, brings it back): %w", err)
}

// withdraw takes a layer out of use, so that a pull fetches it. As for a sweep, one that was held in this round may be a
// container's by now.
func (c *checker) withdraw(id string, round uint64) (discard func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.present[id]; l == nil || l.holds > 0 || l.round >= round {
		return nil, errors.New("a pull or a container that starts uses it: check again later")
	}
	if err := at("repair.unlink", func() (err error) { discard, err = c.setAside(id); return err }); err != nil {
		return nil, err
	}
	delete(c.present, id)
	c.publish()
	return discard, nil
}

// pullAgain fetches what an image lacks, anonymously, by the digest it was pulled by.
func (c *checker) pullAgain(ctx context.Context, rec *imageRecord) error {
	err := errors.New("it was imported, or its registry is not known")
	for _, name := range rec.Digests {
		if _, err = c.pull(ctx, PullRequest{Reference: name, Platform: rec.Platform}); err == nil {
			return nil
		}
	}
	return err
}
