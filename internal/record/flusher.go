package record

import (
	"bytes"
	"context"
	"errors"
	"io"
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
	woken chan struct{} // something is dirty
	mu    sync.Mutex    // guards dirty
	dirty map[string]mark

	fsync func(*os.File) error // for tests; (*os.File).Sync when nil
}

// mark is what is known of a dirty path.
type mark struct {
	record  bool // it gets a second name
	doubted bool // a sync of it has failed: the kernel may have forgotten what the disk did not take
}

// wake is where Run waits while nothing is dirty.
func (f *Flusher) wake() chan struct{} {
	f.once.Do(func() { f.woken = make(chan struct{}, 1) })
	return f.woken
}

// Dirty marks a file or a directory, and the directory that holds it. A file is one that is replaced as a whole, as
// Write does. It never waits.
func (f *Flusher) Dirty(path string) { f.mark(path, mark{}) }

// DirtyRecord marks a record. Once it is durable it is kept under a second name, where ReadSynced finds it while a
// later version is not durable yet. Who removes the record does so by Remove, or with its directory. It never waits.
func (f *Flusher) DirtyRecord(path string) { f.mark(path, mark{record: true}) }

func (f *Flusher) mark(path string, m mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirty == nil {
		f.dirty = map[string]mark{}
	}
	was := f.dirty[path]
	f.dirty[path] = mark{was.record || m.record, was.doubted || m.doubted}
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
		for path, m := range batch {
			if m.record == records {
				errs = append(errs, f.flush(path, m))
			}
		}
	}
	return errors.Join(errs...)
}

func (f *Flusher) flush(path string, m mark) error {
	sync := f.syncPath
	if m.record {
		sync = f.syncRecord
	}
	err := sync(path, m.doubted)
	if err == nil {
		return nil
	}
	if !errors.Is(err, errLost) { // what is lost can only be written anew, by who marks it then
		var unsynced *unsyncedError
		m.doubted = m.doubted || errors.As(err, &unsynced)
		f.mark(path, m)
	}
	if f.Failed != nil {
		f.Failed(path, err)
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

// unsyncedError is that of a file which the kernel could not put on the disk.
type unsyncedError struct{ err error }

func (e *unsyncedError) Error() string { return e.err.Error() }
func (e *unsyncedError) Unwrap() error { return e.err }

// errLost is the end of a version that the disk did not take, and that is in memory no more.
var errLost = errors.New("the disk did not take it when it was synced before, and it is not whole any more")

// syncPath puts a file or directory on the disk. The kernel tells once of what it could not write, and may take it for
// written then, so a record whose sync has failed is written again.
func (f *Flusher) syncPath(path string, doubted bool) error {
	flags := os.O_RDONLY
	if doubted {
		flags = os.O_RDWR
	}
	fd, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	info, err := fd.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // such as a FIFO, which has nothing on a disk
	}
	if doubted {
		if err := writeAgain(fd); err != nil {
			return err
		}
	}
	sync := (*os.File).Sync
	if f.fsync != nil {
		sync = f.fsync
	}
	if err := sync(fd); err != nil {
		if info != nil && info.Mode().IsRegular() {
			return &unsyncedError{err}
		}
		return err
	}
	return nil
}

// writeAgain writes to a file what is in it, if that is a whole record. Nobody else writes to one in its place.
func writeAgain(fd *os.File) error {
	data, err := io.ReadAll(io.LimitReader(fd, MaxSize+1))
	if err != nil {
		return err
	}
	line, body, _ := bytes.Cut(data, []byte("\n"))
	h, ok := parseHeader(string(line))
	if !ok || !h.fits(body) {
		return errLost
	}
	_, err = fd.WriteAt(data, 0)
	return err
}

// syncRecord makes a record durable and then gives it its second name in place of the version that has it. What is
// synced is held by a name of its own, so that a record which is replaced all the time is kept as well. Where there can
// be no second name the record is durable all the same.
func (f *Flusher) syncRecord(path string, doubted bool) error {
	held := filepath.Join(filepath.Dir(path), TempPrefix+"synced-"+filepath.Base(path))
	_ = os.Remove(held) // of a flush that was cut off
	if os.Link(path, held) != nil {
		return f.syncPath(path, doubted)
	}
	defer func() { _ = os.Remove(held) }() // a rename to a name of the same file leaves both
	if err := f.syncPath(held, doubted); err != nil {
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
