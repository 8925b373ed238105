package catalog

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"berth/internal/diskspace"
)

// Sweeper removes layers that nothing uses.
type Sweeper struct {
	Catalog *Catalog
	InUse   func() (used map[string]struct{}, whole bool) // lists the layers that containers use
	soon    chan struct{}                                 // a sweep is wanted for which nobody waits

	mu       sync.Mutex          // guards what follows
	released map[string]struct{} // layers that have lost a user, which Run has not looked at
	wanted   bool                // Run sweeps whatever was released
}

// NewSweeper returns one for which Run and Soon work, too.
func NewSweeper(c *Catalog, inUse func() (used map[string]struct{}, whole bool)) *Sweeper {
	return &Sweeper{Catalog: c, InUse: inUse, soon: make(chan struct{}, 1)}
}

// Soon has Run sweep: layers have lost their last user, and nobody waits for them to go.
func (s *Sweeper) Soon() {
	s.mu.Lock()
	s.wanted = true
	s.mu.Unlock()
	s.wake()
}

// Released says that layers have lost a user. Run sweeps if one of them belongs to no image. Released waits for no
// disk, and so does not look itself.
func (s *Sweeper) Released(layers []string) {
	s.mu.Lock()
	if s.released == nil {
		s.released = map[string]struct{}{}
	}
	for _, id := range layers {
		s.released[id] = struct{}{}
	}
	s.mu.Unlock()
	s.wake()
}

func (s *Sweeper) wake() {
	select {
	case s.soon <- struct{}{}:
	default: // it is about to begin
	}
}

// take returns what was asked of Run since it was called last.
func (s *Sweeper) take() (wanted bool, released map[string]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted, released = s.wanted, s.released
	s.wanted, s.released = false, nil
	return wanted, released
}

// Run sweeps when it is wanted, until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.soon:
			wanted, released := s.take()
			if wanted || s.Catalog.AnyLoose(slices.Collect(maps.Keys(released))) {
				s.Collect(ctx)
			}
		}
	}
}

// Sweep removes the layers that no image and no container uses and no caller holds.
//
// The order matters. An epoch begins before the containers are asked, and a layer that was held at any time in this
// epoch stays, because its holder may have become a container after the question.
func (s *Sweeper) Sweep(ctx context.Context) (err error) {
	s.Catalog.SwapFreed(false) // this is the sweep for them: another would take what a failed pull keeps for its next try
	defer func() {
		if err != nil {
			s.Catalog.SwapFreed(true) // for the next one
		}
	}()
	epoch := s.Catalog.Leases.begin()
	inUse, whole := s.InUse()
	if err := ctx.Err(); err != nil {
		return err
	}
	dead, err := s.Catalog.unlink(epoch, inUse, whole)
	for _, discard := range dead {
		if cerr := At("remove.layer", func() error { discard(); return nil }); err == nil {
			err = cerr
		}
	}
	return errors.Join(err, s.sweepAside(epoch, inUse, whole))
}

// RemoveUnread removes what could not be read, unless a container uses it.
func (s *Sweeper) RemoveUnread(f Finding) error {
	inUse, whole := s.InUse()
	discard, err := s.Catalog.removeUnread(f, inUse, whole)
	if err != nil {
		return err
	}
	discard()
	return nil
}

// MakeRoom collects unused layers when err says that the disk is full: what a pull got before it failed would only fill
// it. Otherwise it stays for the next try, until an image is removed.
func (s *Sweeper) MakeRoom(ctx context.Context, err error) {
	if diskspace.Lacking(err) {
		s.Collect(ctx)
	}
}

// Collect sweeps for nobody who waits for it: why it failed is logged. The next sweep removes what is left.
func (s *Sweeper) Collect(ctx context.Context) {
	if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
		s.Catalog.disk.log.Warn("sweep of layers that nothing uses", "error", err)
	}
}
