package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	for _, f := range s.Problems() {
		if repair {
			f.Repaired = s.removeUnread(f) == nil
		}
		report(f)
	}
	for _, id := range s.presentIDs() {
		found, err := s.checkLayer(ctx, id)
		if err != nil {
			return fail("check image store", err)
		}
		if len(found) > 0 && repair {
			s.repairLayer(ctx, id, found)
		}
		for _, f := range found {
			report(f)
		}
	}
	return fail("check image store", ctx.Err())
}

func (s *Store) presentIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.candidatesLocked(nil)
	slices.Sort(ids)
	return ids
}

func (s *Store) removeUnread(f Finding) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Layer != "" {
		discard, err := s.setAside(f.Layer)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			defer discard()
		}
	} else if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.unread, f.Path)
	return nil
}

// checkLayer verifies one layer, which is held meanwhile. The error is the caller's end.
func (s *Store) checkLayer(ctx context.Context, id string) ([]Finding, error) {
	held, release := s.holdPresent(id)
	if held == "" {
		return nil, nil
	}
	defer release()
	var found []Finding
	add := func(path, problem string) {
		found = append(found, Finding{Image: s.imageWith(id), Layer: id, Path: path, Problem: problem})
	}
	if err := layer.Verify(ctx, s.path(layersDir, id), add); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		add(s.path(layersDir, id, layer.ManifestFile), err.Error())
	}
	return found, nil
}

// imageWith is the id of an image that has the layer.
func (s *Store) imageWith(layerID string) string {
	for _, rec := range s.owners(layerID) {
		return rec.ID
	}
	return ""
}

func (s *Store) owners(layerID string) []*imageRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*imageRecord
	for _, rec := range s.images {
		if slices.ContainsFunc(rec.Layers, func(l layerRef) bool { return l.ID == layerID }) {
			out = append(out, rec)
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].ID < out[b].ID })
	return out
}

// repairLayer takes a damaged layer out of use and fetches it again, and says in found how that went.
func (s *Store) repairLayer(ctx context.Context, id string, found []Finding) {
	err := s.replaceLayer(ctx, id)
	for i := range found {
		found[i].Repaired = err == nil
		if err != nil {
			found[i].Problem += "; not repaired: " + err.Error()
		}
	}
}

func (s *Store) replaceLayer(ctx context.Context, id string) error {
	owners := s.owners(id)
	_, inUse := s.cfg.InUse()[id]
	s.mu.Lock()
	if l := s.present[id]; l == nil || l.holds > 0 {
		s.mu.Unlock()
		return errors.New("it is being used by a pull or a container that starts: check again later")
	}
	kept := s.present[id]
	delete(s.present, id) // so that a pull fetches it; the directory stays until the new one takes its place
	s.publish()
	s.mu.Unlock()

	var err error
	for _, rec := range owners {
		if perr := s.pullAgain(ctx, rec); perr != nil && err == nil {
			err = perr
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present[id] != nil {
		return nil
	}
	if inUse {
		s.present[id] = kept
		s.publish()
		return fmt.Errorf("a container uses it, and it cannot be fetched again: %w", err)
	}
	return s.dropBroken(id, owners, err)
}

// dropBroken removes a layer that could not be replaced with the images that need it.
func (s *Store) dropBroken(id string, owners []*imageRecord, cause error) error {
	for _, rec := range owners {
		if err := s.forgetImageLocked(rec.ID); err != nil {
			return err
		}
	}
	discard, err := s.setAside(id)
	if err != nil {
		return err
	}
	discard()
	s.publish()
	if cause == nil {
		return nil // no image needed it
	}
	return fmt.Errorf("the image was removed, for it cannot be fetched again: %w", cause)
}

// pullAgain fetches what an image lacks, anonymously, by the digest it was pulled by.
func (s *Store) pullAgain(ctx context.Context, rec *imageRecord) error {
	err := errors.New("it was imported, or its registry is not known")
	for _, name := range rec.Digests {
		if _, err = s.Pull(ctx, PullRequest{Reference: name, Platform: rec.Platform}); err == nil {
			return nil
		}
	}
	return err
}
