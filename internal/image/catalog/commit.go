package catalog

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/reference"
)

// edit replaces one image record by another.
type edit struct {
	step     string
	old, rec *ImageRecord // old is nil for a new image
	staged   string       // the file that already holds rec, synced; "" when it is not needed
	later    bool         // only memory changes: the disk does when another image is durable
	behind   bool         // the syncer makes it, for whom the time of a pull alone is worth a write
}

// safe says that the disk has what the edit replaces and is to have what it makes: no power cut may cost it.
func (e *edit) safe() bool { return e.old != nil && e.old.Durable && e.rec.Durable }

// idle says that the edit changes nothing that is worth a write now: most pulls find all as it was. Their time alone is
// for the syncer to write.
func (e *edit) idle() bool { return e.later || e.safe() && e.sameImage() && !e.behind }

// sameImage says that the edit changes nothing but when the image was pulled.
func (e *edit) sameImage() bool {
	plain := func(r ImageRecord) ImageRecord {
		r.PulledAt, r.Stored, r.Boot, r.Parsed = time.Time{}, time.Time{}, "", ocispec.Image{}
		r.Config, r.ArtifactConfig = nil, nil // the id tells them
		return r
	}
	return e.old != nil && reflect.DeepEqual(plain(*e.old), plain(*e.rec))
}

// write puts the record where it belongs, unless nothing is worth that.
func (e *edit) write(d *Disk) error {
	if e.idle() {
		return nil
	}
	err := e.replace(d)
	if err == nil {
		e.rec.Stored = e.rec.PulledAt
	}
	return err
}

func (e *edit) replace(d *Disk) error {
	if e.staged != "" {
		return os.Rename(e.staged, d.RecordPath(e.rec.ID))
	}
	full, err := whole(d, e.rec)
	if err != nil {
		return err
	}
	return ImageKind.Write(d.RecordPath(e.rec.ID), full)
}

// ErrRemoved is returned by Commit for a record in memory, which has no config, of an image that was removed meanwhile:
// the image cannot be recorded anew from it.
var ErrRemoved = errors.New("it was removed meanwhile")

// Commit records an image under its names. What it was called before it keeps; its tags leave other images. A record
// that the disk has is replaced by one that was synced before, and outside the catalog's lock, for which a container
// would wait.
func Commit(c *Catalog, rec *ImageRecord) (Image, error) {
	removed := false
	img, err := carryOut(c, func(v *inventory) []*edit {
		if removed = rec.Config == nil && v.images[rec.ID] == nil; removed {
			return nil
		}
		return editsFor(v, rec)
	})
	if err == nil && removed {
		err = ErrRemoved
	}
	return img, err
}

// Untag takes a tag away from the image that has it, if one has. The image stays, also without any.
func Untag(c *Catalog, tag string) error {
	_, err := carryOut(c, func(v *inventory) (edits []*edit) {
		edits = uncedeAll(v, "", []string{tag})
		for _, rec := range othersNamed(v, "", []string{tag}) {
			less := *rec
			less.Tags = withoutAll(rec.Tags, []string{tag})
			edits = append(edits, &edit{step: "pull.untag", old: rec, rec: &less})
		}
		return edits
	})
	return err
}

// carryOut makes the changes of a plan, and returns the image of the first. It plans anew when others changed what the
// plan was made from.
func carryOut(c *Catalog, plan func(*inventory) []*edit) (Image, error) {
	for {
		edits := c.propose(plan)
		if len(edits) == 0 {
			return Image{}, nil
		}
		done, err := stageEdits(c.disk, edits)
		if errors.Is(err, fs.ErrNotExist) && !sameEdits(edits, c.propose(plan)) {
			continue // an image was removed while its record was read
		}
		if err != nil {
			return Image{}, err
		}
		img, current, err := c.apply(plan, edits)
		done()
		if current || err != nil {
			return img, err
		}
	}
}

// sameEdits reports whether two plans were made from the same records.
func sameEdits(a, b []*edit) bool {
	return slices.EqualFunc(a, b, func(a, b *edit) bool { return a.old == b.old && a.rec.Durable == b.rec.Durable })
}

// editsFor are the changes that make rec an image of the store: its own first, then those of images that lose tags.
func editsFor(v *inventory, rec *ImageRecord) []*edit {
	next, old := *rec, v.images[rec.ID]
	next.Anew = false // it was about the record before
	next.Digests = digestsOf(nil, rec.Digests)
	next.Resolved = resolvedOf(nil, rec.Resolved, next.Digests)
	if old != nil {
		next.Stored = old.Stored
	}
	if old != nil && !rec.Anew {
		next.Tags, next.Digests = reference.Union(old.Tags, rec.Tags), digestsOf(old.Digests, rec.Digests)
		next.Choices = choicesOf(old.Choices, rec.Choices)
		next.Resolved = resolvedOf(old.Resolved, rec.Resolved, next.Digests)
		next.Ceded = withoutAll(old.Ceded, next.Tags)
		next.Durable = old.Durable && slices.Equal(old.Layers, rec.Layers) && layersDurable(v, rec)
	}
	edits := []*edit{{step: "pull.record", old: old, rec: &next}}
	for _, other := range othersNamed(v, next.ID, next.Tags) {
		edits = append(edits, takeTags(other, &next))
	}
	if next.Durable {
		edits = append(edits, uncedeAll(v, next.ID, next.Tags)...)
	}
	return edits
}

// takeTags is the change of an image that loses tags to next. If the disk has the image and not next, it keeps the tags
// there until it has next: a power cut would leave them to nobody. After a mere crash of the daemon both records have
// them, and dedupeTags finds next by what is not durable.
func takeTags(other, next *ImageRecord) *edit {
	less := *other
	if other.Durable && !next.Durable {
		cede(&less, func(tag string) bool { return slices.Contains(next.Tags, tag) })
		return &edit{step: "pull.untag", old: other, rec: &less, later: true}
	}
	less.Tags = withoutAll(other.Tags, next.Tags)
	return &edit{step: "pull.untag", old: other, rec: &less}
}

// withoutAll are the tags that are not among the others; nil for none.
func withoutAll(tags, others []string) (left []string) {
	for _, tag := range tags {
		if !slices.Contains(others, tag) {
			left = append(left, tag)
		}
	}
	return left
}

// uncede is the change by which an image takes tags off the disk that it has ceded; none where it has ceded none of
// them.
func uncede(rec *ImageRecord, tags []string) []*edit {
	less := *rec
	less.Ceded = withoutAll(rec.Ceded, tags)
	if len(less.Ceded) == len(rec.Ceded) {
		return nil
	}
	return []*edit{{step: "sync.untag", old: rec, rec: &less}}
}

// uncedeAll are these changes of all images but the one with that id.
func uncedeAll(v *inventory, id string, tags []string) (edits []*edit) {
	for _, other := range slices.Sorted(maps.Keys(v.ceding)) {
		if other != id {
			edits = append(edits, uncede(v.images[other], tags)...)
		}
	}
	return edits
}

// settle takes ceded tags off the disk: those of images that are durable by now, and those that no image has any more.
// An image whose record cannot be written keeps no other from it.
func settle(c *Catalog) error {
	var ceding []string
	c.propose(func(v *inventory) []*edit { ceding = slices.Sorted(maps.Keys(v.ceding)); return nil })
	var errs []error
	for _, id := range ceding {
		_, err := carryOut(c, func(v *inventory) []*edit {
			rec := v.images[id]
			if rec == nil {
				return nil
			}
			awaited := func(tag string) bool {
				return slices.ContainsFunc(v.byName[tag], func(id string) bool { return !v.images[id].Durable })
			}
			return uncede(rec, slices.DeleteFunc(slices.Clone(rec.Ceded), awaited))
		})
		if !errors.Is(err, fs.ErrNotExist) { // else it was removed meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pulledAtDelay is how far the time of the last pull on the disk may be behind the one in memory.
const pulledAtDelay = 24 * time.Hour

// stale says that the disk has the image, with the time of a pull of long ago.
func (rec *ImageRecord) stale() bool {
	return rec.Durable && rec.PulledAt.Sub(rec.Stored) > pulledAtDelay
}

// noteTimes writes when images were pulled where the disk has a time of long ago. A disk that is full has it again when
// something else is to be written.
func noteTimes(c *Catalog) {
	var stale []string
	c.propose(func(v *inventory) []*edit { stale = slices.Sorted(maps.Keys(v.stale)); return nil })
	for _, id := range stale {
		_, err := carryOut(c, func(v *inventory) []*edit {
			old := v.images[id]
			if old == nil || !old.stale() {
				return nil
			}
			rec := *old
			return []*edit{{step: "sync.time", old: old, rec: &rec, behind: true}}
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else it was removed meanwhile
			c.disk.log.Warn("note on the disk when an image was pulled; the next change of the store tries again", "image", id,
				"error", err)
		}
		if fail.Lacking(err) {
			return
		}
	}
}

// Forget removes the record of the image that an id, tag or digest names; there is false when there is no such image.
// Its tags are nobody's then, also on the disk.
func Forget(c *Catalog, refOrID string) (there bool, err error) {
	if img, ok := c.Snapshot().Find(refOrID); ok {
		_, err := carryOut(c, func(v *inventory) []*edit { return uncedeAll(v, img.ID, img.RepoTags) })
		if err != nil { // a full disk keeps nobody from removing an image; settle goes on with it
			c.disk.log.Warn("take the tags of an image that is removed from those that had them before", "image", img.ID,
				"error", err)
		}
	}
	return c.drop(refOrID)
}

// othersNamed are the images that have one of the tags, by id, without the one that is to have them.
func othersNamed(v *inventory, id string, tags []string) []*ImageRecord {
	var ids []string
	for _, tag := range tags {
		ids = reference.Union(ids, v.byName[tag])
	}
	var out []*ImageRecord
	for _, other := range ids {
		if other != id {
			out = append(out, v.images[other])
		}
	}
	return out
}

// stageEdits writes and syncs the records that replace what the disk has. done removes the staged files that were not
// renamed into place.
func stageEdits(d *Disk, edits []*edit) (done func(), err error) {
	toStage := func(e *edit) bool { return e.safe() && !e.idle() }
	if !slices.ContainsFunc(edits, toStage) {
		return func() {}, nil
	}
	dir, done, err := d.NewIngest("commit.ingest")
	if err != nil {
		return nil, err
	}
	for i, e := range edits {
		if !toStage(e) {
			continue
		}
		if err := e.stage(d, filepath.Join(dir, strconv.Itoa(i))); err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

// stage writes the record to a file and syncs it.
func (e *edit) stage(d *Disk, file string) error {
	full, err := whole(d, e.rec)
	if err != nil {
		return err
	}
	if err := ImageKind.Stage(file, full); err != nil {
		return err
	}
	e.staged = file
	return At("commit.stage", func() error { return syncFile(file) })
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// resolvedOf adds to the descriptors of a record, and keeps those of the digests that the image has. What is there
// stays in its place, so that a pull that changes nothing writes nothing.
func resolvedOf(old, added []ocispec.Descriptor, digests []string) (kept []ocispec.Descriptor) {
	for _, desc := range slices.Concat(old, added) {
		named := func(name string) bool { return strings.HasSuffix(name, "@"+desc.Digest.String()) }
		same := func(other ocispec.Descriptor) bool { return other.Digest == desc.Digest }
		if slices.ContainsFunc(digests, named) && !slices.ContainsFunc(kept, same) {
			kept = append(kept, desc)
		}
	}
	return kept
}

// maxChoices is how many of its choices a record keeps: those that were last added.
const maxChoices = 8

// choicesOf adds to those of a record. What is there stays in its place, so that a pull that changes nothing writes
// nothing.
func choicesOf(old, added []string) []string {
	all := slices.Clone(old)
	for _, choice := range added {
		if !slices.Contains(all, choice) {
			all = append(all, choice)
		}
	}
	return all[max(0, len(all)-maxChoices):]
}
