package catalog

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/internal/image/reference"
)

// Index is what reads answer from: the store at one moment. One that was published is not changed; a changed one shares
// with it what the change does not touch.
type Index struct {
	images []*Image             // by id
	names  *shards[string]      // tags and repository digests, to the id of their image
	layers *shards[LayerRecord] // by id
	byDiff *shards[*tarUses]    // by diff id
	bytes  uint64
	inodes uint64
	at     time.Time
}

// tarUses are the ids of the layers that have a diff id, and of the images that have one of them, in no order.
type tarUses struct{ layers, images []string }

func emptyIndex() *Index {
	return &Index{names: &shards[string]{}, layers: &shards[LayerRecord]{}, byDiff: &shards[*tarUses]{}}
}

// uses are what there is of a diff id.
func (i *Index) uses(diff digest.Digest) tarUses {
	if u, ok := i.byDiff.get(diff.String()); ok {
		return *u
	}
	return tarUses{}
}

// LayersFrom are the ids of the layers that were unpacked from a tar, in no order.
func (i *Index) LayersFrom(diff digest.Digest) []string { return i.uses(diff).layers }

// ImagesFrom goes through the images that have a layer with a diff id.
func (i *Index) ImagesFrom(diff digest.Digest) iter.Seq[*Image] {
	return func(yield func(*Image) bool) {
		for _, id := range i.uses(diff).images {
			if n, ok := i.search(id); ok && !yield(i.images[n]) {
				return
			}
		}
	}
}

// Layer is the record of a layer, empty when there is none.
func (i *Index) Layer(id string) LayerRecord {
	rec, _ := i.layers.get(id)
	return rec
}

// Has reports whether there is a layer.
func (i *Index) Has(layer string) bool {
	_, there := i.layers.get(layer)
	return there
}

// EachLayer goes through the records of all layers, in no order.
func (i *Index) EachLayer() iter.Seq[LayerRecord] {
	return func(yield func(LayerRecord) bool) {
		for id := range i.layers.keys() {
			if !yield(i.Layer(id)) {
				return
			}
		}
	}
}

// Usage is what the layers take of the disk, and when that was so.
func (i *Index) Usage() (bytes, inodes uint64, at time.Time) { return i.bytes, i.inodes, i.at }

// search is the place of an image among all, or where it would be.
func (i *Index) search(id string) (int, bool) {
	return slices.BinarySearchFunc(i.images, id, func(img *Image, id string) int { return strings.Compare(img.ID, id) })
}

func (i *Index) image(id string) (Image, bool) {
	n, ok := i.search(id)
	if !ok {
		return Image{}, false
	}
	return *i.images[n], true
}

// Find finds an image by a name, its whole id or the beginning of one.
func (i *Index) Find(ref string) (Image, bool) {
	if img, ok := i.FindWhole(ref); ok {
		return img, true
	}
	if !isShortID(ref) {
		return Image{}, false
	}
	n, _ := i.search("sha256:" + ref)
	begins := func(n int) bool { return n < len(i.images) && strings.HasPrefix(i.images[n].ID, "sha256:"+ref) }
	if !begins(n) || begins(n+1) {
		return Image{}, false
	}
	return *i.images[n], true
}

// FindWhole finds an image by a name or its whole id.
func (i *Index) FindWhole(ref string) (Image, bool) {
	if img, ok := i.image("sha256:" + strings.TrimPrefix(ref, "sha256:")); ok {
		return img, true
	}
	if r, err := reference.Parse(ref); err == nil {
		if id, ok := i.names.get(r.String()); ok {
			return i.image(id)
		}
	}
	return Image{}, false
}

// List returns all images, by id.
func (i *Index) List() []Image {
	out := make([]Image, len(i.images))
	for n, img := range i.images {
		out[n] = *img
	}
	return out
}

// indexEdit makes the next index from one that was published.
type indexEdit struct {
	next   Index
	own    bool // the list of images was copied already
	names  *shardEdit[string]
	layers *shardEdit[LayerRecord]
	byDiff *shardEdit[*tarUses]
	fresh  map[*tarUses]bool // made by this edit: they may be changed
}

func editIndex(old *Index) *indexEdit {
	return &indexEdit{
		next: *old, names: editShards(old.names), layers: editShards(old.layers), byDiff: editShards(old.byDiff),
		fresh: map[*tarUses]bool{},
	}
}

func (e *indexEdit) ownImages() {
	if !e.own {
		e.next.images, e.own = slices.Clone(e.next.images), true
	}
}

func (e *indexEdit) putImage(img *Image) {
	e.ownImages()
	n, there := e.next.search(img.ID)
	if there {
		e.relate(img.ID, e.next.images[n].LayerRefs, img.LayerRefs)
		e.next.images[n] = img
		return
	}
	e.relate(img.ID, nil, img.LayerRefs)
	e.next.images = slices.Insert(e.next.images, n, img)
}

func (e *indexEdit) dropImage(id string) {
	e.ownImages()
	if n, there := e.next.search(id); there {
		e.relate(id, e.next.images[n].LayerRefs, nil)
		e.next.images = slices.Delete(e.next.images, n, n+1)
	}
}

// relate notes the diff ids that an image has now instead of those that it had.
func (e *indexEdit) relate(id string, before, now []LayerRef) {
	if slices.Equal(before, now) {
		return
	}
	old, new := diffsOf(before), diffsOf(now)
	for diff := range old {
		if !new[diff] {
			e.changeUses(diff, func(u *tarUses) { u.images = without(u.images, id) })
		}
	}
	for diff := range new {
		if !old[diff] {
			e.changeUses(diff, func(u *tarUses) { u.images = append(u.images, id) })
		}
	}
}

func diffsOf(refs []LayerRef) map[digest.Digest]bool {
	set := make(map[digest.Digest]bool, len(refs))
	for _, ref := range refs {
		set[ref.DiffID] = true
	}
	return set
}

func (e *indexEdit) changeUses(diff digest.Digest, change func(*tarUses)) {
	u, _ := e.byDiff.next.get(diff.String())
	if !e.fresh[u] {
		var old tarUses
		if u != nil {
			old = *u
		}
		u = &tarUses{slices.Clone(old.layers), slices.Clone(old.images)}
		e.fresh[u] = true
		e.byDiff.put(diff.String(), u)
	}
	change(u)
	if len(u.layers)+len(u.images) == 0 {
		e.byDiff.drop(diff.String())
	}
}

func without(list []string, one string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == one })
}

// name has a name lead to an image, or nowhere when the id is empty.
func (e *indexEdit) name(name, id string) {
	if id == "" {
		e.names.drop(name)
		return
	}
	if was, _ := e.names.next.get(name); was != id {
		e.names.put(name, id)
	}
}

func (e *indexEdit) putLayer(rec LayerRecord) {
	was, there := e.layers.next.get(rec.ID)
	e.next.bytes, e.next.inodes = e.next.bytes-was.Bytes+rec.Bytes, e.next.inodes-was.Inodes+rec.Inodes
	if there && was.DiffID != rec.DiffID {
		e.changeUses(was.DiffID, func(u *tarUses) { u.layers = without(u.layers, rec.ID) })
	}
	if !there || was.DiffID != rec.DiffID {
		e.changeUses(rec.DiffID, func(u *tarUses) { u.layers = append(u.layers, rec.ID) })
	}
	e.layers.put(rec.ID, rec)
}

func (e *indexEdit) dropLayer(id string) {
	was, there := e.layers.next.get(id)
	if there {
		e.changeUses(was.DiffID, func(u *tarUses) { u.layers = without(u.layers, id) })
	}
	e.next.bytes, e.next.inodes = e.next.bytes-was.Bytes, e.next.inodes-was.Inodes
	e.layers.drop(id)
}

// finish returns the index. The edit is not used again.
func (e *indexEdit) finish() *Index {
	e.next.names, e.next.layers, e.next.byDiff = e.names.next, e.layers.next, e.byDiff.next
	e.next.at = time.Now()
	return &e.next
}

// leastDigits is how many digits of an image's id name it. A few would let anybody who may name an image try them all.
const leastDigits = 12

// isShortID reports whether s could be the beginning of an image's id, as people type it: bare, since a request that
// says sha256: means the whole id.
func isShortID(s string) bool {
	return len(s) >= leastDigits && len(s) < 64 && strings.Trim(s, "0123456789abcdef") == ""
}
