package image

import (
	"context"
	"errors"

	"berth/internal/room"
)

// Remove removes the image that the id, tag or digest names, with all its tags and digests: as containerd does, a name
// stands for the whole image. Layers that nothing else uses go with it, and those of pulls that failed. It succeeds when there is no such image.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	op := "remove image " + refOrID
	there, err := s.catalog.forget(refOrID)
	if there && err == nil {
		err = s.sweeper.sweep(ctx)
	}
	return failed(op, s.disk.explain(err))
}

// Sweep collects the layers that no image and no container uses and nobody holds, and what is left of work that ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper.sweep(ctx); err != nil {
		return failed("sweep image store", err)
	}
	return failed("sweep image store", s.disk.sweepIngests())
}

// sweeper collects what is dead.
type sweeper struct {
	catalog *catalog
	inUse   func() (used map[string]struct{}, whole bool)
}

// sweep collects unused layers.
//
// The order matters. A epoch begins before the containers are asked, and a layer that was held at any time in this epoch
// stays: whoever held it may have become a container after the question.
func (s *sweeper) sweep(ctx context.Context) error {
	epoch := s.catalog.leases.begin()
	inUse, whole := s.inUse()
	if err := ctx.Err(); err != nil {
		return err
	}
	dead, err := s.catalog.unlink(epoch, inUse, whole)
	for _, discard := range dead {
		if cerr := at("remove.layer", func() error { discard(); return nil }); err == nil {
			err = cerr
		}
	}
	return errors.Join(err, s.sweepAside(epoch, inUse, whole))
}

// makeRoom collects unused layers when err says that the disk is full: what a pull got before it failed would only fill it.
// Otherwise it stays for the next try, until an image is removed.
func (s *sweeper) makeRoom(ctx context.Context, err error) {
	if !room.Lacking(err) {
		return
	}
	if err := s.sweep(ctx); err != nil {
		s.catalog.disk.log.Warn("sweep of unused layers, for the disk is full", "error", err)
	}
}
