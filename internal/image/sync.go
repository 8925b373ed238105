package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// syncer makes images durable behind their pulls.
type syncer struct {
	*catalog
	ask   chan struct{} // for a round
	flush func() error  // puts all that was written on the disk
}

// wake asks for a round of the syncer, without waiting.
func (s *syncer) wake() {
	select {
	case s.ask <- struct{}{}:
	default:
	}
}

// syncAgain is when a round that failed is tried again: a disk that is full now may have room then.
const syncAgain = 30 * time.Second

// run syncs whenever asked, until ctx ends.
func (s *syncer) run(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ask:
		case <-again:
		}
		again = nil
		if err := s.syncOnce(); err != nil {
			s.log.Warn("make images durable; it is tried again", "after", syncAgain, "error", err)
			again = time.After(syncAgain)
		}
	}
}

// round is what one sync makes durable.
type round struct {
	dir    string // of the staged records
	images []*imageRecord
	layers []*layerState
}

// syncOnce puts all that is not durable on the disk, and says so in its records only then. The records are staged first, so
// that the one sync has their content on the disk before they get their names: a name without its content would cost an
// image that is whole.
func (s *syncer) syncOnce() error {
	r := s.pending()
	if len(r.images)+len(r.layers) == 0 {
		return nil
	}
	dir, done, err := s.newIngest("sync.ingest")
	if err != nil {
		return err
	}
	defer done()
	r.dir = dir
	if err := r.stage(s.disk); err != nil {
		return err
	}
	if err := at("sync.disk", s.flush); err != nil {
		s.doubt(r)
		return err
	}
	var errs []error // one that cannot be renamed keeps no other from it
	for _, l := range r.layers {
		errs = append(errs, s.layerDurable(r, l))
	}
	for _, rec := range r.images {
		errs = append(errs, s.imageDurable(r, rec))
	}
	return errors.Join(errs...)
}

func (s *syncer) pending() *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	images, layers := unsyncedOf(s.inventory)
	return &round{images: images, layers: layers}
}

// doubt has the layers of a round that failed never be called durable: the kernel tells once of what it could not write, and
// forgets it then, so that a round that succeeds later says nothing of them. Another boot drops them.
func (s *syncer) doubt(r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range r.layers {
		if s.present[l.ID] != l {
			continue
		}
		l.Doubtful = true
		s.putLayer(l)
		if err := layerKind.Write(s.layerRecordPath(l.ID), l.layerRecord); err != nil {
			s.log.Warn("note that a layer may not be on the disk", "layer", l.ID, "error", err)
		}
	}
}

func (r *round) layerFile(id string) string { return filepath.Join(r.dir, "layer-"+id) }
func (r *round) imageFile(id string) string {
	return filepath.Join(r.dir, "image-"+strings.TrimPrefix(id, "sha256:"))
}

func (r *round) stage(d *disk) error {
	for _, l := range r.layers {
		if err := layerKind.Stage(r.layerFile(l.ID), l.asDurable()); err != nil {
			return err
		}
	}
	images := r.images
	r.images = nil
	for _, rec := range images {
		full, err := whole(d, rec)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		r.images = append(r.images, rec)
		if err := imageKind.Stage(r.imageFile(rec.ID), full.asDurable()); err != nil {
			return err
		}
	}
	return nil
}

func (l *layerState) asDurable() layerRecord {
	rec := l.layerRecord
	rec.Durable = true
	return rec
}

func (rec *imageRecord) asDurable() *imageRecord {
	durable := *rec
	durable.Durable = true
	return &durable
}

func (s *syncer) layerDurable(r *round, l *layerState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present[l.ID] != l {
		return nil // it was removed, or fetched again
	}
	path := s.layerRecordPath(l.ID)
	if err := at("sync.layer", func() error { return os.Rename(r.layerFile(l.ID), path) }); err != nil {
		return err
	}
	l.layerRecord = l.asDurable()
	s.putLayer(l)
	s.publish()
	s.dirty(path)
	return nil
}

func (s *syncer) imageDurable(r *round, rec *imageRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.images[rec.ID] != rec || !s.layersDurable(rec) {
		return nil // another pull came in between, and asked for its own round
	}
	path := s.recordPath(rec.ID)
	if err := at("sync.record", func() error { return os.Rename(r.imageFile(rec.ID), path) }); err != nil {
		return err
	}
	s.putImage(rec.asDurable())
	s.publish()
	s.dirty(path)
	return nil
}

// layersDurable says whether the disk has all layers of an image.
func (c *catalog) layersDurable(rec *imageRecord) bool {
	for _, l := range rec.Layers {
		if have := c.present[l.ID]; have == nil || !have.Durable {
			return false
		}
	}
	return true
}

// diskFlusher returns what syncs the file system of dir. It reports what could not be written since it was made, or since it was
// called last, also when another process has synced the file system and heard of it first.
func diskFlusher(dir string) (flush func() error, done func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	return func() error { return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))) }, f.Close, nil
}
