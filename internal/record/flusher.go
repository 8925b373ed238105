package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Flusher makes dirty files and directories durable, some time after they were marked. Nothing waits for it but Flush.
type Flusher struct {
	// Interval is how long a marked path may stay unsynced while Run runs; a second when zero.
	Interval time.Duration
	// Failed is told of each path that could not be synced; the path stays dirty. Nil drops it.
	Failed func(path string, err error)

	once  sync.Once
	woken chan struct{}   // something is dirty
	mu    sync.Mutex      // guards dirty
	dirty map[string]bool // whether it is a record
}

// wake is where Run waits while nothing is dirty.
func (f *Flusher) wake() chan struct{} {
	f.once.Do(func() { f.woken = make(chan struct{}, 1) })
	return f.woken
}

// Dirty marks a file or a directory, and the directory that holds it. It never waits.
func (f *Flusher) Dirty(path string) { f.mark(path, false) }

// DirtyRecord marks a record. Once it is durable it is kept under a second name, where ReadSynced finds it while a
// later version is not durable yet. Who removes the record does so by Remove, or with its directory. It never waits.
func (f *Flusher) DirtyRecord(path string) { f.mark(path, true) }

func (f *Flusher) mark(path string, record bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirty == nil {
		f.dirty = map[string]bool{}
	}
	f.dirty[path] = f.dirty[path] || record
	f.dirty[filepath.Dir(path)] = f.dirty[filepath.Dir(path)]
	select {
	case f.wake() <- struct{}{}:
	default:
	}
}

// Flush syncs all that is dirty. What is gone by now needs no sync. What fails stays dirty.
func (f *Flusher) Flush() error {
	f.mu.Lock()
	batch := f.dirty
	f.dirty = nil
	f.mu.Unlock()
	var errs []error
	for _, records := range []bool{true, false} { // a record's second name is durable by the sync of its directory
		for path, record := range batch {
			if record == records {
				errs = append(errs, f.flush(path, record))
			}
		}
	}
	return errors.Join(errs...)
}

func (f *Flusher) flush(path string, record bool) error {
	sync := syncPath
	if record {
		sync = syncRecord
	}
	err := sync(path)
	if err != nil {
		f.mark(path, record)
		if f.Failed != nil {
			f.Failed(path, err)
		}
	}
	return err
}

// Run flushes an interval after something became dirty, until ctx ends, and a last time then. While nothing is dirty it
// sleeps.
func (f *Flusher) Run(ctx context.Context) {
	every := f.Interval
	if every <= 0 {
		every = time.Second
	}
	for {
		select {
		case <-ctx.Done():
			_ = f.Flush()
			return
		case <-f.wake():
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
		_ = f.Flush()
	}
}

func syncPath(path string) error {
	fd, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	if info, err := fd.Stat(); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // such as a FIFO, which has nothing on a disk
	}
	return fd.Sync()
}

// syncRecord makes a record durable and then gives it its second name in place of the version that has it. What is
// synced is held by a name of its own, so that a record which is replaced all the time is kept as well. Where there can
// be no second name the record is durable all the same.
func syncRecord(path string) error {
	held := filepath.Join(filepath.Dir(path), TempPrefix+"synced-"+filepath.Base(path))
	_ = os.Remove(held) // of a flush that was cut off
	if os.Link(path, held) != nil {
		return syncPath(path)
	}
	defer func() { _ = os.Remove(held) }() // a rename to a name of the same file leaves both
	if err := syncPath(held); err != nil {
		return err
	}
	if err := os.Rename(held, synced(path)); err != nil {
		return nil // the record was removed, or stays without
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(synced(path)) // Remove may have passed already
	}
	return nil
}
