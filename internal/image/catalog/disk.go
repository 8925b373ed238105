package catalog

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/diskspace"
	"berth/internal/fault"
)

// Disk knows where things are, and hands out places for work in flight.
type Disk struct {
	Root    string
	log     *slog.Logger
	session string // tells names in ingest/ from those of an earlier process
	ingests atomic.Uint64
	active  sync.Map // names in ingest/ that are in use, each with the failures when it began

	failures atomic.Uint64 // how often the disk did not take what was written
}

// NewDisk returns the disk of the store at root. Nothing is made there yet.
func NewDisk(root string, log *slog.Logger) *Disk {
	return &Disk{Root: root, log: log, session: strconv.FormatInt(time.Now().UnixNano(), 36)}
}

// MakeDirs makes the directories of the store where they are not there.
func (d *Disk) MakeDirs() error {
	for _, dir := range []string{RecordsDir, LayersDir, IngestDir} {
		if err := os.MkdirAll(d.Path(dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// RecordsDir and the others are the directories of the store.
const (
	RecordsDir = "records"
	LayersDir  = "layers"
	IngestDir  = "ingest"
)

// Path is where something of the store is.
func (d *Disk) Path(elem ...string) string {
	return filepath.Join(append([]string{d.Root}, elem...)...)
}

// LayerDir is the directory of a layer, and LayerFS the tree in it.
func (d *Disk) LayerDir(id string) string { return d.Path(LayersDir, id) }

func (d *Disk) LayerFS(id string) string { return d.Path(LayersDir, id, "fs") }

// RecordPath is the file of an image's record, and LayerRecordPath that of a layer's.
func (d *Disk) RecordPath(id string) string {
	return d.Path(RecordsDir, strings.TrimPrefix(id, "sha256:"))
}

func (d *Disk) LayerRecordPath(id string) string { return d.Path(LayersDir, id, "layer") }

// ToMakeRoom is what a person can do about a full image store.
const ToMakeRoom = "remove images"

// Explain adds to an error of the store's file system what to do about it.
func (d *Disk) Explain(err error) error { return diskspace.Explain(err, d.Root, ToMakeRoom) }

// NewIngest makes a directory for work in flight. done removes what is left of it.
func (d *Disk) NewIngest(step string) (dir string, done func(), err error) {
	dir, done = d.claimIngest()
	if err := At(step, func() error { return os.Mkdir(dir, 0o700) }); err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

// claimIngest takes a name in ingest/ that no other work, of this process or an earlier one, has.
func (d *Disk) claimIngest() (dir string, done func()) {
	name := strconv.FormatUint(d.ingests.Add(1), 10) + "-" + d.session
	d.active.Store(name, d.failures.Load())
	return d.Path(IngestDir, name), d.discarder(name)
}

// failedSince reports whether the disk has failed since a directory of ingest/ was made: what was written there may be
// lost, and no later sync says so.
func (d *Disk) failedSince(dir string) bool {
	began, known := d.active.Load(filepath.Base(dir))
	return known && began != d.failures.Load()
}

// discarder returns what removes a directory of ingest/.
func (d *Disk) discarder(name string) func() {
	return func() {
		if err := os.RemoveAll(d.Path(IngestDir, name)); err != nil {
			d.log.Warn("remove ingest directory", "name", name, "error", err)
		}
		d.active.Delete(name)
	}
}

// SweepIngests removes what is left in ingest/ of work that has ended.
func (d *Disk) SweepIngests() error {
	entries, err := os.ReadDir(d.Path(IngestDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, busy := d.active.Load(e.Name()); !busy {
			d.discarder(e.Name())()
		}
	}
	return nil
}

// At runs a step that changes the disk between its two fault points.
func At(step string, do func() error) error {
	if err := fault.At("image." + step + ".before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return fault.At("image." + step + ".after")
}

// setAside moves a layer out of use, so that its name is free; discard removes it. A layer whose directory is missing
// is out of use already.
func (d *Disk) setAside(id string) (discard func(), err error) {
	dir, discard := d.claimIngest()
	err = os.Rename(d.LayerDir(id), dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(d.LayerDir(id)); errors.Is(gone, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		discard()
		return nil, err
	}
	return discard, nil
}
