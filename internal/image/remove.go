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

// Sweep removes layers that no image and no container uses and no caller holds, and the remains of work that has ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweeper.Sweep(ctx); err != nil {
		return failed("sweep image store", err)
	}
	return failed("sweep image store", s.disk.SweepIngests())
}
