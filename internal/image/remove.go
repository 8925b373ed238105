package image

import (
	"context"

	"berth/internal/image/catalog"
)

// Remove removes the image that the id, tag or digest names, with all its tags and digests: a name stands for the whole
// image, as in containerd. It also removes unused layers, those of failed pulls too, and goes on with that when the
// caller leaves: a call that finds the image gone would not. It succeeds if there is no such image.
func (s *Store) Remove(_ context.Context, refOrID string) error {
	op := "remove image " + refOrID
	there, err := catalog.Forget(s.catalog, refOrID)
	switch {
	case err != nil:
	case there:
		err = s.sweeper.Sweep(s.ctx)
	case s.catalog.SwapFreed(false): // the sweep of an earlier call has failed
		s.sweeper.Soon()
	}
	return failed(op, s.disk.Explain(err))
}

// Released says that a container is gone that used layers. Those that no image has any more are collected soon. It does
// not wait.
func Released(s *Store, layers []string) { s.sweeper.Released(layers) }

// settle ends a pull or an import: it makes room where that failed for want of it, and has the layers collected that an
// image had before and has no more.
func (s *Store) settle(err error) {
	s.sweeper.MakeRoom(s.ctx, err)
	if s.catalog.SwapFreed(false) {
		s.sweeper.Soon()
	}
}

// Sweep removes layers that no image and no container uses and no caller holds, and the remains of work that has ended.
// It may be called at any time. When ctx ends it returns, and files are removed until the daemon ends.
func (s *Store) Sweep(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		err := s.sweeper.Sweep(s.ctx)
		if err == nil {
			err = s.ctx.Err()
		}
		if err == nil {
			err = s.disk.SweepIngests()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return failed("sweep image store", err)
	case <-ctx.Done():
		return failed("sweep image store", ctx.Err())
	}
}
