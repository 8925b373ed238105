package image

import (
	"slices"
	"strings"
	"time"
)

// index is what reads answer from: the store at one moment. Nobody changes one that was published; a changed one shares
// with it what the change does not touch.
type index struct {
	images []*Image             // by id
	names  *shards[string]      // tags and repository digests, to the id of their image
	layers *shards[layerRecord] // by id
	bytes  uint64
	inodes uint64
	at     time.Time
}

func emptyIndex() *index { return &index{names: &shards[string]{}, layers: &shards[layerRecord]{}} }

// search is the place of an image among all, or where it would be.
func (i *index) search(id string) (int, bool) {
	return slices.BinarySearchFunc(i.images, id, func(img *Image, id string) int { return strings.Compare(img.ID, id) })
}

func (i *index) image(id string) (Image, bool) {
	n, ok := i.search(id)
	if !ok {
		return Image{}, false
	}
	return *i.images[n], true
}

// find finds an image by a name, its whole id or the beginning of one.
func (i *index) find(ref string) (Image, bool) {
	if img, ok := i.findWhole(ref); ok {
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

// findWhole finds an image by a name or its whole id.
func (i *index) findWhole(ref string) (Image, bool) {
	if img, ok := i.image("sha256:" + strings.TrimPrefix(ref, "sha256:")); ok {
		return img, true
	}
	if r, err := ParseReference(ref); err == nil {
		if id, ok := i.names.get(r.String()); ok {
			return i.image(id)
		}
	}
	return Image{}, false
}

// list returns all images, by id.
func (i *index) list() []Image {
	out := make([]Image, len(i.images))
	for n, img := range i.images {
		out[n] = *img
	}
	return out
}

// indexEdit makes the next index from one that was published.
type indexEdit struct {
	next   index
	own    bool // the list of images was copied already
	names  *shardEdit[string]
	layers *shardEdit[layerRecord]
}

func editIndex(old *index) *indexEdit {
	return &indexEdit{next: *old, names: editShards(old.names), layers: editShards(old.layers)}
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
		e.next.images[n] = img
		return
	}
	e.next.images = slices.Insert(e.next.images, n, img)
}

func (e *indexEdit) dropImage(id string) {
	e.ownImages()
	if n, there := e.next.search(id); there {
		e.next.images = slices.Delete(e.next.images, n, n+1)
	}
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

func (e *indexEdit) putLayer(rec layerRecord) {
	was, _ := e.layers.next.get(rec.ID)
	e.next.bytes, e.next.inodes = e.next.bytes-was.Bytes+rec.Bytes, e.next.inodes-was.Inodes+rec.Inodes
	e.layers.put(rec.ID, rec)
}

func (e *indexEdit) dropLayer(id string) {
	was, _ := e.layers.next.get(id)
	e.next.bytes, e.next.inodes = e.next.bytes-was.Bytes, e.next.inodes-was.Inodes
	e.layers.drop(id)
}

// finish returns the index. The edit is not used again.
func (e *indexEdit) finish() *index {
	e.next.names, e.next.layers, e.next.at = e.names.next, e.layers.next, time.Now()
	return &e.next
}
