package image

import "context"

// Remove removes the image that the id, tag or digest names, with all its tags and digests: as containerd does, a name
// stands for the whole image. Layers that nothing else uses go with it, and those of pulls that failed. It succeeds
// when there is no such image.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	op := "remove image " + refOrID
	there, err := s.catalog.Forget(refOrID)
	if there && err == nil {
		err = s.sweeper.Sweep(ctx)
	}
	return failed(op, s.disk.Explain(err))
}

// Sweep removes the layers that no image and no container uses and no caller holds, and what is left of work that
// ended. It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper.Sweep(ctx); err != nil {
		return failed("sweep image store", err)
	}
	return failed("sweep image store", s.disk.SweepIngests())
}
