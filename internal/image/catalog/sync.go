package catalog

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

// Syncer makes images durable behind their pulls.
type Syncer struct {
	catalog *Catalog
	ask     chan struct{} // for a batch
	Flush   func() error  // puts all that was written on the disk
}

// NewSyncer returns a Syncer that makes durable what is committed to c from now on. flush puts all that was written on
// the disk.
func NewSyncer(c *Catalog, flush func() error) *Syncer {
	s := &Syncer{catalog: c, ask: make(chan struct{}, 1), Flush: flush}
	c.changed = s.Wake
	return s
}

// Wake asks for a batch of the syncer, without waiting.
func (s *Syncer) Wake() {
	select {
	case s.ask <- struct{}{}:
	default:
	}
}

// syncAgain is when a batch that failed is tried again: a disk that is full now may have room then.
const syncAgain = 30 * time.Second

// Run syncs whenever asked, until ctx ends.
func (s *Syncer) Run(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ask:
		case <-again:
		}
		again = nil
		if err := s.SyncOnce(); err != nil {
			s.catalog.disk.log.Warn("make images durable; it is tried again", "after", syncAgain, "error", err)
			again = time.After(syncAgain)
		}
	}
}

// syncBatch is what one sync makes durable.
type syncBatch struct {
	dir    string // of the staged records
	images []*ImageRecord
	layers []*layerState
}

// SyncOnce makes durable what is not. Then it takes the tags off the disk that images have lost to those, and writes
// when images were pulled.
func (s *Syncer) SyncOnce() error {
	err := errors.Join(s.syncNew(), settle(s.catalog))
	noteTimes(s.catalog)
	return err
}

// syncNew puts all that is not durable on the disk, and says so in its records only then. The records are staged
// first, so that the one sync has their content on the disk before they get their names: a name without its content
// would cost an image that is whole.
func (s *Syncer) syncNew() error {
	images, layers := s.catalog.unsynced()
	if len(images)+len(layers) == 0 {
		return nil
	}
	dir, done, err := s.catalog.disk.NewIngest("sync.ingest")
	if err != nil {
		return err
	}
	defer done()
	b := &syncBatch{dir: dir, layers: layers}
	if err := b.stageLayers(); err != nil {
		return err
	}
	errs := b.stageImages(s.catalog.disk, images) // an image that cannot be read or renamed keeps no other from it
	if len(b.layers)+len(b.images) == 0 {
		return errors.Join(errs...)
	}
	if err := At("sync.disk", s.Flush); err != nil {
		// The kernel tells once of what it could not write, and forgets it then: a batch that succeeds later says
		// nothing of what was written until now, in this batch or for a later one.
		s.catalog.doubtLayers()
		return errors.Join(append(errs, err)...)
	}
	for _, l := range b.layers {
		errs = append(errs, s.catalog.layerDurable(l, b.layerFile(l.ID)))
	}
	for _, rec := range b.images {
		errs = append(errs, s.catalog.imageDurable(rec, b.imageFile(rec.ID)))
	}
	return errors.Join(errs...)
}

func (b *syncBatch) layerFile(id string) string { return filepath.Join(b.dir, "layer-"+id) }
func (b *syncBatch) imageFile(id string) string {
	return filepath.Join(b.dir, "image-"+strings.TrimPrefix(id, "sha256:"))
}

func (b *syncBatch) stageLayers() error {
	for _, l := range b.layers {
		if err := layerKind.Stage(b.layerFile(l.ID), l.asDurable()); err != nil {
			return err
		}
	}
	return nil
}

// stageImages stages the records of images. Those that it could stage are of the batch.
func (b *syncBatch) stageImages(d *Disk, images []*ImageRecord) (errs []error) {
	for _, rec := range images {
		full, err := whole(d, rec)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err == nil {
			err = ImageKind.Stage(b.imageFile(rec.ID), full.asDurable())
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b.images = append(b.images, rec)
	}
	return errs
}

func (l *layerState) asDurable() LayerRecord {
	rec := l.LayerRecord
	rec.Durable = true
	return rec
}

func (rec *ImageRecord) asDurable() *ImageRecord {
	durable := *rec
	durable.Durable = true
	return &durable
}

// layersDurable reports whether the disk has all layers of an image.
func layersDurable(v *inventory, rec *ImageRecord) bool {
	for _, l := range rec.Layers {
		if have := v.present[l.ID]; have == nil || !have.Durable {
			return false
		}
	}
	return true
}

// DiskFlusher returns what syncs the file system of dir. It reports what could not be written since it was made, or
// since it was called last, also when another process has synced the file system and heard of it first.
func DiskFlusher(dir string) (flush func() error, done func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	return func() error { return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))) }, f.Close, nil
}
