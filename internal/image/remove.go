package image

import "context"

// Remove removes the image that the id, tag or digest names, with all its tags and digests: a name stands for the whole
// image, as in containerd. It also removes unused layers, those of failed pulls too. It succeeds if there is no such
// image.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	op := "remove image " + refOrID
	there, err := s.catalog.Forget(refOrID)
	if there && err == nil {
		err = s.sweeper.Sweep(ctx)
	}
	return failed(op, s.disk.Explain(err))
}

// Released says that a container is gone that used layers. Those that no image has any more are collected soon.
func Released(s *Store, layers []string) {
	if s.catalog.AnyLoose(layers) {
		s.sweeper.Soon()
	}
}

// settle ends a pull or an import: it makes room where that failed for want of it, and has the layers collected that an
// image had before and has no more.
func (s *Store) settle(err error) {
	s.sweeper.MakeRoom(s.ctx, err)
	if s.catalog.TakeFreed() {
		s.sweeper.Soon()
	}
}

// Sweep removes layers that no image and no container uses and no caller holds, and the remains of work that has ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper.Sweep(ctx); err != nil {
		return failed("sweep image store", err)
	}
	return failed("sweep image store", s.disk.SweepIngests())
}
