package image

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

	"berth/internal/fault"
	"berth/internal/room"
)

// disk knows where things are, and hands out places for work in flight.
type disk struct {
	root    string
	log     *slog.Logger
	session string // tells names in ingest/ from those of an earlier process
	ingests atomic.Uint64
	active  sync.Map // names in ingest/ that are in use
}

// newDisk returns the disk of the store at root. Nothing is made there yet.
func newDisk(root string, log *slog.Logger) *disk {
	return &disk{root: root, log: log, session: strconv.FormatInt(time.Now().UnixNano(), 36)}
}

// makeDirs makes the directories of the store where they are not there.
func (d *disk) makeDirs() error {
	for _, dir := range []string{recordsDir, layersDir, ingestDir} {
		if err := os.MkdirAll(d.path(dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// The directories of the store.
const (
	recordsDir = "records"
	layersDir  = "layers"
	ingestDir  = "ingest"
)

func (d *disk) path(elem ...string) string {
	return filepath.Join(append([]string{d.root}, elem...)...)
}

func (d *disk) layerDir(id string) string { return d.path(layersDir, id) }

func (d *disk) layerFS(id string) string { return d.path(layersDir, id, "fs") }

func (d *disk) recordPath(id string) string {
	return d.path(recordsDir, strings.TrimPrefix(id, "sha256:"))
}

func (d *disk) layerRecordPath(id string) string { return d.path(layersDir, id, "layer") }

func (d *disk) topmostFirst(ids []string) []string {
	var out []string
	for i := len(ids) - 1; i >= 0; i-- {
		out = append(out, d.layerFS(ids[i]))
	}
	return out
}

// toMakeRoom is what a person can do about a full image store.
const toMakeRoom = "remove images"

// explain adds to an error of the store's file system what to do about it.
func (d *disk) explain(err error) error { return room.Explain(err, d.root, toMakeRoom) }

// newIngest makes a directory for work in flight. done removes what is left of it.
func (d *disk) newIngest(step string) (dir string, done func(), err error) {
	dir, done = d.claimIngest()
	if err := at(step, func() error { return os.Mkdir(dir, 0o700) }); err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

// claimIngest takes a name in ingest/ that no other work, of this process or an earlier one, has.
func (d *disk) claimIngest() (dir string, done func()) {
	name := strconv.FormatUint(d.ingests.Add(1), 10) + "-" + d.session
	d.active.Store(name, true)
	return d.path(ingestDir, name), d.discarder(name)
}

// discarder returns what removes a directory of ingest/.
func (d *disk) discarder(name string) func() {
	return func() {
		if err := os.RemoveAll(d.path(ingestDir, name)); err != nil {
			d.log.Warn("remove ingest directory", "name", name, "error", err)
		}
		d.active.Delete(name)
	}
}

// sweepIngests removes what is left in ingest/ of work that has ended.
func (d *disk) sweepIngests() error {
	entries, err := os.ReadDir(d.path(ingestDir))
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

// at runs a step that changes the disk between its two fault points.
func at(step string, do func() error) error {
	if err := fault.At("image." + step + ".before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return fault.At("image." + step + ".after")
}

// setAside moves a layer out of use, so that its name is free; discard removes it. One whose directory somebody has removed
// already is out of use.
func (d *disk) setAside(id string) (discard func(), err error) {
	dir, discard := d.claimIngest()
	err = os.Rename(d.layerDir(id), dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(d.layerDir(id)); errors.Is(gone, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		discard()
		return nil, err
	}
	return discard, nil
}
