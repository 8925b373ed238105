package catalog

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/image/document"
	"berth/internal/record"
)

// loader reads what is on disk when a store is opened. Nothing else uses the catalog yet. What it cannot clear away,
// for the file system has turned read-only, it reports and does not use: all else is served.
type loader struct {
	c    *Catalog
	dirs map[string]struct{} // the layers that have a directory, readable or not
	left []func()            // remove what is of no use to anybody
}

// Load reads what is on disk and returns what removes the directories that are of no use.
func Load(c *Catalog) (left []func(), err error) {
	l := &loader{c: c, dirs: map[string]struct{}{}}
	ingest, err := os.ReadDir(c.disk.Path(IngestDir))
	if err != nil {
		return nil, err
	}
	for _, e := range ingest {
		c.disk.active.Store(e.Name(), c.disk.failures.Load())
		l.left = append(l.left, c.disk.discarder(e.Name()))
	}
	if err := l.layers(); err != nil {
		return nil, err
	}
	if err := l.images(); err != nil {
		return nil, err
	}
	markSuspects(c.inv)
	c.inv.publish()
	return l.left, nil
}

// readers is how many records are read at once: a few more than there are processors, since a disk may have to be
// waited for.
func readers() int { return runtime.GOMAXPROCS(0) + 4 }

// readEach calls read for each of n things, several at once.
func readEach(n int, read func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, readers()) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				read(int(i))
			}
		})
	}
	all.Wait()
}

// problem notes what cannot be read.
func (l *loader) problem(f Finding) {
	l.c.unread[f.Path] = f
	l.c.disk.log.Error("the image store is damaged", "image", f.Image, "layer", f.Layer, "problem", f.Problem)
}

func (l *loader) layers() error {
	entries, err := os.ReadDir(l.c.disk.Path(LayersDir))
	if err != nil {
		return err
	}
	recs, errs := make([]LayerRecord, len(entries)), make([]error, len(entries))
	readEach(len(entries), func(i int) {
		_, errs[i] = layerKind.Read(l.c.disk.LayerRecordPath(entries[i].Name()), &recs[i])
	})
	for i, e := range entries {
		l.dirs[e.Name()] = struct{}{}
		l.layer(e.Name(), recs[i], errs[i])
	}
	return nil
}

// layer takes over a layer whose record was read, or could not be.
func (l *loader) layer(id string, rec LayerRecord, err error) {
	problem := func(text string) {
		l.problem(Finding{Layer: id, Path: l.c.disk.Path(LayersDir, id), Problem: text})
	}
	switch {
	case torn(err), err == nil && rec.ID == id && !rec.Durable && rec.Boot != l.c.boot:
		var discard func()
		err := At("open.layer", func() (err error) { discard, err = l.c.disk.setAside(id); return err })
		if err != nil {
			problem(notDurable + ", and cannot be removed: " + err.Error())
			return
		}
		delete(l.dirs, id)
		l.left = append(l.left, discard)
	case err != nil:
		problem(err.Error())
	case rec.ID != id:
		problem("its record is that of " + rec.ID)
	default:
		l.c.inv.putLayer(&layerState{LayerRecord: rec})
		l.c.Leases.admit(id)
	}
}

const notDurable = "it was not on disk yet when the machine went down"

func (l *loader) images() error {
	entries, err := os.ReadDir(l.c.disk.Path(RecordsDir))
	if err != nil {
		return err
	}
	recs, errs := make([]*ImageRecord, len(entries)), make([]error, len(entries))
	readEach(len(entries), func(i int) {
		if name := entries[i].Name(); !strings.HasPrefix(name, record.TempPrefix) {
			recs[i], errs[i] = readImage(l.c.disk.Path(RecordsDir, name), name)
		}
	})
	images := map[string]*ImageRecord{}
	for i, e := range entries {
		path := l.c.disk.Path(RecordsDir, e.Name())
		if strings.HasPrefix(e.Name(), record.TempPrefix) {
			_ = os.Remove(path)
			continue
		}
		if l.image(e.Name(), path, recs[i], errs[i]) {
			images[recs[i].ID] = recs[i]
		}
	}
	dedupeTags(images)
	for _, rec := range images {
		l.c.inv.putImage(rec)
	}
	return nil
}

// image reports whether the image of a record that was read, or could not be, is to be served.
func (l *loader) image(name, path string, rec *ImageRecord, err error) bool {
	problem := func(text string) { l.problem(Finding{Image: "sha256:" + name, Path: path, Problem: text}) }
	if why := l.useless(rec, err); why != "" {
		l.c.disk.log.Warn("drop image; the next pull brings it again", "image", name, "why", why)
		err := At("open.image", func() error { return os.Remove(path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problem(why + ", and its record cannot be removed: " + err.Error())
		}
		return false
	}
	if err == nil {
		err = l.lacking(rec)
	}
	if err != nil {
		problem(err.Error())
	}
	return err == nil
}

// useless says why an image record is of no use to anybody, "" when it is, or when a person should look at it.
func (l *loader) useless(rec *ImageRecord, err error) string {
	if torn(err) || err == nil && !rec.Durable && rec.Boot != l.c.boot {
		return notDurable
	}
	if rec == nil {
		return ""
	}
	for _, layer := range rec.Layers {
		if _, there := l.dirs[layer.ID]; !there {
			return "its layer " + layer.ID + " is gone"
		}
	}
	return ""
}

// lacking says which layer of an image is there and cannot be used.
func (l *loader) lacking(rec *ImageRecord) error {
	for _, layer := range rec.Layers {
		if l.c.inv.present[layer.ID] == nil {
			return fail.New(errdefs.ErrDataLoss,
				"layer %s cannot be used: pull the image again, or run `berth check --repair`", layer.ID)
		}
	}
	return nil
}

// readImage reads one record, and of its config what is kept in memory.
func readImage(path, name string) (*ImageRecord, error) {
	rec, err := readRecord(path, "sha256:"+name)
	if err != nil {
		return nil, err
	}
	if rec.IsArtifact() {
		rec.Artifact, err = document.DecodeArtifact(rec.Config)
	} else {
		rec.Parsed, err = document.DecodeConfig(rec.Config)
	}
	if err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "image config: %w", err)
	}
	rec.Stored = rec.PulledAt
	return rec.slim(), nil // RawConfig reads what is left out again when it is needed
}

// markSuspects remembers the layers that belong to no image that could be read. As long as there are records that could
// not, one of them may own such a layer.
func markSuspects(v *inventory) {
	for id, l := range v.present {
		_, l.suspect = v.loose[id]
		l.opened = true
	}
}

// ReadOnly says that the file system of the store takes no change now.
func ReadOnly(d *Disk) bool {
	var st unix.Statfs_t
	return unix.Statfs(d.Root, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
