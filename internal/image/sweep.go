package image

import (
	"context"
	"maps"
	"os"
	"slices"
)

// Remove removes the image that the id, tag or digest names, with all its tags and digests: as containerd does, a name
// stands for the whole image. Layers that nothing else uses go with it. It succeeds when there is no such image.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	op := "remove image " + refOrID
	s.mu.Lock()
	img, ok := s.snapshot.Load().find(refOrID)
	if !ok {
		s.mu.Unlock()
		return nil
	}
	err := at("remove.record", func() error { return s.forgetImageLocked(img.ID) })
	s.mu.Unlock()
	if err != nil {
		return fail(op, s.explain(err))
	}
	return fail(op, s.explain(s.sweeper().sweep(ctx, img.Layers)))
}

// Sweep collects the layers that no image and no container uses and nobody holds, and what is left of work that ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper().sweep(ctx, nil); err != nil {
		return fail("sweep image store", err)
	}
	entries, err := os.ReadDir(s.path(ingestDir))
	if err != nil {
		return fail("sweep image store", err)
	}
	for _, e := range entries {
		if _, busy := s.active.Load(e.Name()); !busy {
			s.discarder(e.Name())()
		}
	}
	return nil
}

// sweeper collects what is dead.
type sweeper struct {
	*catalog
	inUse func() map[string]struct{}
}

func (s *Store) sweeper() *sweeper { return &sweeper{s.catalog, s.cfg.InUse} }

// sweep collects unused layers; only those in among, unless it is nil.
//
// The order matters. A round begins before the containers are asked, and a layer that was held at any time in this round
// stays: whoever held it may have become a container after the question.
func (s *sweeper) sweep(ctx context.Context, among []string) error {
	s.mu.Lock()
	s.round++
	round := s.round
	s.mu.Unlock()
	inUse := s.inUse()
	if err := ctx.Err(); err != nil {
		return err
	}
	dead, err := s.unlink(round, inUse, among)
	for _, discard := range dead {
		if cerr := at("remove.layer", func() error { discard(); return nil }); err == nil {
			err = cerr
		}
	}
	return err
}

// unlink takes dead layers out of use; discarding them is the slow part and needs no lock.
func (s *sweeper) unlink(round uint64, inUse map[string]struct{}, among []string) (dead []func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.publish()
	marked := s.markedLocked()
	if among == nil {
		among = slices.Collect(maps.Keys(s.present))
	}
	for _, id := range among {
		l := s.present[id]
		_, owned := marked[id]
		_, used := inUse[id]
		if l == nil || owned || used || l.holds > 0 || l.round >= round || l.suspect && s.unreadImages() {
			continue
		}
		var discard func()
		if err := at("remove.unlink", func() (err error) { discard, err = s.setAside(id); return err }); err != nil {
			return dead, err
		}
		delete(s.present, id)
		s.dirty(s.path(layersDir))
		dead = append(dead, discard)
	}
	return dead, nil
}
