package image

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// syncer makes images durable behind their pulls.
type syncer struct {
	*catalog
	ask chan struct{} // for a round
}

// wake asks for a round of the syncer, without waiting.
func (s *syncer) wake() {
	select {
	case s.ask <- struct{}{}:
	default:
	}
}

// run syncs whenever asked, until ctx ends.
func (s *syncer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ask:
		}
		if err := s.syncOnce(); err != nil {
			s.log.Warn("make images durable", "error", err)
		}
	}
}

// syncOnce puts all that is not durable on the disk, and says so in its record only then.
func (s *syncer) syncOnce() error {
	s.mu.Lock()
	images, layers := map[string]uint64{}, []string{}
	for id, rec := range s.images {
		if !rec.Durable {
			images[id] = rec.revision
		}
	}
	for id, l := range s.present {
		if !l.Durable {
			layers = append(layers, id)
		}
	}
	s.mu.Unlock()
	if len(images)+len(layers) == 0 {
		return nil
	}
	if err := syncFS(s.root); err != nil {
		return err
	}
	for _, id := range layers {
		if err := s.layerDurable(id); err != nil {
			return err
		}
	}
	for id, revision := range images {
		if err := s.imageDurable(id, revision); err != nil {
			return err
		}
	}
	return nil
}

func (s *syncer) layerDurable(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.present[id]
	if l == nil {
		return nil
	}
	rec := l.layerRecord
	rec.Durable = true
	if err := at("sync.layer", func() error { return layerKind.Write(s.layerRecordPath(id), rec) }); err != nil {
		return err
	}
	l.layerRecord = rec
	s.dirty(s.layerRecordPath(id))
	return nil
}

func (s *syncer) imageDurable(id string, revision uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.images[id]
	if rec == nil || rec.revision != revision {
		return nil // another pull came in between, and asked for its own round
	}
	durable := *rec
	durable.Durable = true
	return at("sync.record", func() error { return s.writeImageLocked(&durable) })
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
