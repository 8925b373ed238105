package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// inventory is what the catalog knows of images and layers, with the look-ups that its changes need: no change looks
// at all images or all layers. The catalog's lock guards all of it but the snapshot.
type inventory struct {
	snapshot atomic.Pointer[Index]
	next     *indexEdit // what has changed since the snapshot; nil for nothing
	pinned   pins
	pathOf   func(id string) string // of an image's record
	suits    func(a, b string) int  // compares two platforms: the greater one suits the node better; may be nil

	images  map[string]*ImageRecord
	present map[string]*layerState
	byLayer relation // of a layer, the ids of the images that have it
	byName  relation // of a tag or repository digest, the ids of the images that are called so

	ceding   map[string]struct{} // images with ceded tags
	stale    map[string]struct{} // images whose time of the last pull is to be written
	loose    map[string]struct{} // layers that no image has
	freed    bool                // one of them was an image's
	unsynced struct {            // what is not durable yet, and may become so
		images, layers map[string]struct{}
	}
}

func newInventory(pinned []string, pathOf func(id string) string) *inventory {
	v := &inventory{
		pinned: pins{Configured: parsePatterns(pinned)}, pathOf: pathOf,
		images: map[string]*ImageRecord{}, present: map[string]*layerState{}, byLayer: relation{}, byName: relation{},
		ceding: map[string]struct{}{}, stale: map[string]struct{}{}, loose: map[string]struct{}{},
	}
	v.unsynced.images, v.unsynced.layers = map[string]struct{}{}, map[string]struct{}{}
	v.snapshot.Store(emptyIndex())
	return v
}

// indexEditOf is the change that the next publish makes known.
func indexEditOf(v *inventory) *indexEdit {
	if v.next == nil {
		v.next = editIndex(v.snapshot.Load())
	}
	return v.next
}

// publish makes readers see what has changed.
func (v *inventory) publish() {
	if v.next != nil {
		v.snapshot.Store(v.next.finish())
		v.next = nil
	}
}

// putImage adds an image, or replaces what is known of it.
func (v *inventory) putImage(rec *ImageRecord) {
	old := v.images[rec.ID]
	v.images[rec.ID] = rec
	relateImage(v, rec.ID, old, rec)
	img := imageFrom(rec, v.pathOf(rec.ID), &v.pinned)
	indexEditOf(v).putImage(&img)
	setMember(v.unsynced.images, rec.ID, !rec.Durable)
	setMember(v.ceding, rec.ID, len(rec.Ceded) > 0)
	setMember(v.stale, rec.ID, rec.stale())
}

func (v *inventory) dropImage(id string) {
	old := v.images[id]
	delete(v.images, id)
	delete(v.unsynced.images, id)
	delete(v.ceding, id)
	delete(v.stale, id)
	relateImage(v, id, old, nil)
	indexEditOf(v).dropImage(id)
}

// relateImage brings the look-ups from an image's old record to its new one. Either may be nil.
func relateImage(v *inventory, id string, old, rec *ImageRecord) {
	for _, layer := range v.byLayer.move(id, old.LayerIDs(), rec.LayerIDs()) {
		weighLayer(v, layer)
		_, loose := v.loose[layer]
		v.freed = v.freed || loose
	}
	names := slices.Concat(old.names(), rec.names())
	v.byName.move(id, old.names(), rec.names())
	for _, name := range names {
		indexEditOf(v).name(name, leadsTo(v, v.byName[name]))
	}
}

// leadsTo returns the image to which a name leads that several images have, as the digest of an index does: the one
// whose platform suits the node best, and of several such the one that was pulled last.
func leadsTo(v *inventory, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return slices.MaxFunc(ids, func(a, b string) int {
		x, y := v.images[a], v.images[b]
		if v.suits != nil && x.Platform != y.Platform {
			if c := v.suits(x.Platform, y.Platform); c != 0 {
				return c
			}
		}
		return cmp.Or(x.PulledAt.Compare(y.PulledAt), strings.Compare(a, b))
	})
}

// putLayer adds a layer, or makes known what has changed of it.
func (v *inventory) putLayer(l *layerState) {
	v.present[l.ID] = l
	indexEditOf(v).putLayer(l.LayerRecord)
	weighLayer(v, l.ID)
	setMember(v.unsynced.layers, l.ID, !l.Durable && !l.Doubtful)
}

func (v *inventory) dropLayer(id string) {
	delete(v.present, id)
	delete(v.unsynced.layers, id)
	indexEditOf(v).dropLayer(id)
	weighLayer(v, id)
}

// weighLayer notes whether a layer is one that no image has.
func weighLayer(v *inventory, layer string) {
	_, there := v.present[layer]
	setMember(v.loose, layer, there && len(v.byLayer[layer]) == 0)
}

// ownersOf are the images that have a layer, by id.
func ownersOf(v *inventory, layer string) []*ImageRecord {
	var out []*ImageRecord
	for _, id := range slices.Sorted(slices.Values(v.byLayer[layer])) {
		out = append(out, v.images[id])
	}
	return out
}

// repin takes over other patterns of pinned names.
func repin(v *inventory, by Pinner, pinned []string) {
	v.pinned[by] = parsePatterns(pinned)
	for _, rec := range v.images {
		v.putImage(rec)
	}
}

// imageFrom is what readers see of a record.
func imageFrom(rec *ImageRecord, path string, pinned *pins) Image {
	return Image{
		ID: rec.ID, RepoTags: slices.Clone(rec.Tags), RepoDigests: slices.Clone(rec.Digests),
		Size: rec.Size, Config: rec.Parsed, Artifact: rec.Artifact, PulledAt: rec.PulledAt, Platform: rec.Platform,
		Manifest: rec.Manifest, Durable: rec.Durable, record: path, LayerRefs: rec.Layers, Resolved: rec.Resolved,
		Layers: rec.LayerIDs(),
		Pinned: pinned.has(rec),
	}
}

// LayerIDs are the ids of the image's layers, the lowest first; none of no record.
func (rec *ImageRecord) LayerIDs() []string {
	if rec == nil {
		return nil
	}
	ids := make([]string, len(rec.Layers))
	for i, l := range rec.Layers {
		ids[i] = l.ID
	}
	return ids
}

func (rec *ImageRecord) names() []string {
	if rec == nil {
		return nil
	}
	return slices.Concat(rec.Tags, rec.Digests)
}

// relation is, for each key, the images that have to do with it.
type relation map[string][]string

// move has an image relate to the keys of now instead of those of before, and returns the keys that it gained or lost.
func (r relation) move(image string, before, now []string) (changed []string) {
	if slices.Equal(before, now) {
		return nil
	}
	old, new := memberSet(before), memberSet(now)
	for key := range old {
		if _, stays := new[key]; !stays {
			r.drop(key, image)
			changed = append(changed, key)
		}
	}
	for key := range new {
		if _, was := old[key]; !was {
			r[key] = append(r[key], image)
			changed = append(changed, key)
		}
	}
	return changed
}

func (r relation) drop(key, image string) {
	left := slices.DeleteFunc(r[key], func(one string) bool { return one == image })
	if len(left) == 0 {
		delete(r, key)
		return
	}
	r[key] = left
}

func memberSet(list []string) map[string]struct{} {
	set := make(map[string]struct{}, len(list))
	for _, one := range list {
		set[one] = struct{}{}
	}
	return set
}

func setMember(set map[string]struct{}, key string, member bool) {
	if member {
		set[key] = struct{}{}
	} else {
		delete(set, key)
	}
}

// unsyncedOf are the images and layers that are not durable yet and may become so, in no order. An image of which a
// layer is in doubt may not.
func unsyncedOf(v *inventory) (images []*ImageRecord, layers []*layerState) {
	doubtful := func(l LayerRef) bool { return v.present[l.ID] != nil && v.present[l.ID].Doubtful }
	for id := range maps.Keys(v.unsynced.images) {
		if rec := v.images[id]; !slices.ContainsFunc(rec.Layers, doubtful) {
			images = append(images, rec)
		}
	}
	for id := range maps.Keys(v.unsynced.layers) {
		layers = append(layers, v.present[id])
	}
	return images, layers
}
