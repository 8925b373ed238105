package image

import (
	"context"
	"errors"
	"os"

	"berth/internal/room"
)

// Remove removes the image that the id, tag or digest names, with all its tags and digests: as containerd does, a name
// stands for the whole image. Layers that nothing else uses go with it, and those of pulls that failed. It succeeds when there is no such image.
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
		return failed(op, s.explain(err))
	}
	return failed(op, s.explain(s.sweeper().sweep(ctx)))
}

// Sweep collects the layers that no image and no container uses and nobody holds, and what is left of work that ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper().sweep(ctx); err != nil {
		return failed("sweep image store", err)
	}
	entries, err := os.ReadDir(s.path(ingestDir))
	if err != nil {
		return failed("sweep image store", err)
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
	inUse func() (used map[string]struct{}, whole bool)
}

func (s *Store) sweeper() *sweeper { return &sweeper{s.catalog, s.cfg.InUse} }

// sweep collects unused layers.
//
// The order matters. A round begins before the containers are asked, and a layer that was held at any time in this round
// stays: whoever held it may have become a container after the question.
func (s *sweeper) sweep(ctx context.Context) error {
	round := s.leases.begin()
	inUse, whole := s.inUse()
	if err := ctx.Err(); err != nil {
		return err
	}
	dead, err := s.unlink(round, inUse, whole)
	for _, discard := range dead {
		if cerr := at("remove.layer", func() error { discard(); return nil }); err == nil {
			err = cerr
		}
	}
	return errors.Join(err, s.sweepAside(round, inUse, whole))
}

// makeRoom collects unused layers when err says that the disk is full: what a pull got before it failed would only fill it.
// Otherwise it stays for the next try, until an image is removed.
func (s *sweeper) makeRoom(ctx context.Context, err error) {
	if !room.Lacking(err) {
		return
	}
	if err := s.sweep(ctx); err != nil {
		s.log.Warn("sweep of unused layers, for the disk is full", "error", err)
	}
}

// unlink takes dead layers out of use; discarding them is the slow part and needs no lock.
func (s *sweeper) unlink(round uint64, inUse map[string]struct{}, whole bool) (dead []func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.publish()
	for id := range s.loose {
		l := s.present[id]
		_, used := inUse[id]
		kept := used || l.suspect && s.unreadImages() || l.opened && !whole
		if kept || !s.leases.expel(id, round) {
			continue
		}
		var discard func()
		if err := at("remove.unlink", func() (err error) { discard, err = s.setAside(id); return err }); err != nil {
			s.leases.admit(id)
			return dead, err
		}
		s.dropLayer(id)
		s.dirty(s.path(layersDir))
		dead = append(dead, discard)
	}
	return dead, nil
}
