package image

import (
	"context"
	"errors"

	"berth/internal/room"
)

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

// removeUnread removes what could not be read, unless a container uses it.
func (s *sweeper) removeUnread(f Finding) error {
	inUse, whole := s.inUse()
	return s.catalog.removeUnread(f, inUse, whole)
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
