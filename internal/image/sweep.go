package image

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
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
		return fail(op, err)
	}
	return fail(op, s.sweep(ctx, img.Layers))
}

func (s *Store) forgetImageLocked(id string) error {
	path := s.recordPath(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.images, id)
	delete(s.unread, path)
	s.cfg.Dirty(path)
	s.publish()
	return nil
}

// Sweep collects the layers that no image and no container uses and nobody holds, and what is left of work that ended.
// It may be called at any time.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.sweep(ctx, nil); err != nil {
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

// sweep collects unused layers; only those in among, unless it is nil.
//
// The order matters. A round begins before the containers are asked, and a layer that was held at any time in this round
// stays: whoever held it may have become a container after the question.
func (s *Store) sweep(ctx context.Context, among []string) error {
	s.mu.Lock()
	s.round++
	round := s.round
	s.mu.Unlock()
	inUse := s.cfg.InUse()
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
func (s *Store) unlink(round uint64, inUse map[string]struct{}, among []string) (dead []func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.publish()
	marked := s.markedLocked()
	for _, id := range s.candidatesLocked(among) {
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
		s.cfg.Dirty(s.path(layersDir))
		dead = append(dead, discard)
	}
	return dead, nil
}

func (s *Store) candidatesLocked(among []string) []string {
	if among != nil {
		return among
	}
	all := make([]string, 0, len(s.present))
	for id := range s.present {
		all = append(all, id)
	}
	return all
}

// markedLocked is the set of layers that images name.
func (s *Store) markedLocked() map[string]struct{} {
	marked := map[string]struct{}{}
	for _, rec := range s.images {
		for _, l := range rec.Layers {
			marked[l.ID] = struct{}{}
		}
	}
	return marked
}

// unreadImages says whether there are image records that nobody could read.
func (s *Store) unreadImages() bool {
	for _, f := range s.unread {
		if f.Image != "" {
			return true
		}
	}
	return false
}

// wakeSyncer asks for a round of the syncer, without waiting.
func (s *Store) wakeSyncer() {
	select {
	case s.sync <- struct{}{}:
	default:
	}
}

// syncer makes images durable behind their pulls.
func (s *Store) syncer() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.sync:
		}
		if err := s.syncOnce(); err != nil {
			s.log.Warn("make images durable", "error", err)
		}
	}
}

// syncOnce puts all that is not durable on the disk, and says so in its record only then.
func (s *Store) syncOnce() error {
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
	if err := syncFS(s.cfg.Root); err != nil {
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

func (s *Store) layerDurable(id string) error {
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
	s.cfg.Dirty(s.layerRecordPath(id))
	return nil
}

func (s *Store) imageDurable(id string, revision uint64) error {
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
