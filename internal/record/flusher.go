package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Flusher makes dirty files and directories durable, some time after they were marked. Nothing waits for it but Flush.
type Flusher struct {
	// Interval is how long a marked path may stay unsynced while Run runs; a second when zero.
	Interval time.Duration
	// Failed is told of each path that could not be synced; the path stays dirty. Nil drops it.
	Failed func(path string, err error)

	once  sync.Once
	woken chan struct{} // something is dirty
	mu    sync.Mutex    // guards dirty
	dirty map[string]struct{}
}

// wake is where Run waits while nothing is dirty.
func (f *Flusher) wake() chan struct{} {
	f.once.Do(func() { f.woken = make(chan struct{}, 1) })
	return f.woken
}

// Dirty marks a file or a directory, and the directory that holds it. It never waits.
func (f *Flusher) Dirty(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirty == nil {
		f.dirty = map[string]struct{}{}
	}
	f.dirty[path] = struct{}{}
	f.dirty[filepath.Dir(path)] = struct{}{}
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
	for path := range batch {
		if err := syncPath(path); err != nil {
			errs = append(errs, err)
			f.Dirty(path)
			if f.Failed != nil {
				f.Failed(path, err)
			}
		}
	}
	return errors.Join(errs...)
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
	fd, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	return fd.Sync()
}
