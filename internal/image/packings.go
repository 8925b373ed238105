package image

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/progress"
)

// unite puts an image that was just got together with what the store has under the same id. An id promises
// configuration and diff ids, not blobs: the same image may come from two registries in two packings, and whoever
// uses it by its id, or by either name, has to get what the diff ids promise. That a blob unpacks to its diff id is
// known from what unpacked it, which knew the blob too. So where the packings differ the daemon digests the tars
// itself: that of the new layer, which is proven by it, and that of the old one, whose names stay only then. The
// image gets the layer that is made of the tar alone.
//
// The caller has the lock of the image's record. What done releases is held until the image is recorded.
func unite(
	ctx context.Context, s *pipeline, rec *catalog.ImageRecord, requests []layerRequest, src source, p *progress.Reporter,
) (done func(), err error) {
	old := s.catalog.Record(rec.ID)
	if old == nil {
		return func() {}, nil
	}
	differ := differing(s.catalog.Snapshot(), old, rec)
	if !slices.Contains(differ, true) {
		return func() {}, nil
	}
	proven := &repacked{source: src, tars: map[digest.Digest]string{}}
	plain := make([]layerRequest, len(requests))
	for n, w := range requests {
		if differ[n] && !digestedHere(s.catalog.Snapshot(), rec.Layers[n].ID) {
			dir := s.disk.LayerDir(rec.Layers[n].ID)
			if w, _, err = tarIn(w, dir); err != nil {
				return func() {}, err
			}
			proven.tars[w.diffID] = dir
		}
		w.below = plain[:n]
		plain[n] = w
	}
	ids, done, err := stack(ctx, s, plain, proven, p)
	if err != nil {
		return done, err
	}
	for n, id := range ids {
		rec.Layers[n].ID = id
		rec.Anew = rec.Anew || differ[n] && !keepsTar(ctx, s, old.Layers[n])
	}
	return done, nil
}

// differing tells for each layer whether the store's image has another one, of another blob. One that is the same but
// for the layers below it becomes the same when those are.
func differing(i *catalog.Index, old, rec *catalog.ImageRecord) []bool {
	out := make([]bool, len(rec.Layers))
	for n, ref := range rec.Layers {
		was := old.Layers[n]
		finalizedAnew := isFinalized(was.ID) && i.Layer(was.ID).Blob == ref.Blob
		out[n] = i.Has(was.ID) && was.ID != ref.ID && !finalizedAnew
	}
	return out
}

// digestedHere says that an earlier release has unpacked a layer, which digested every tar itself.
func digestedHere(i *catalog.Index, id string) bool {
	return i.Has(id) && isByTar(id) && i.Layer(id).Blob == ""
}

// keepsTar reports whether a layer has the tar that an image promises.
func keepsTar(ctx context.Context, s *pipeline, ref catalog.LayerRef) bool {
	if digestedHere(s.catalog.Snapshot(), ref.ID) {
		return true
	}
	t, err := openTar(ctx, s.disk.LayerDir(ref.ID))
	if err != nil {
		return false
	}
	defer t.Close()
	sum, err := ref.DiffID.Algorithm().FromReader(t)
	if err == nil && sum == ref.DiffID {
		return true
	}
	reportDamage(ctx, s.catalog, ref.ID, fail.New(errdefs.ErrDataLoss, "its tar is not the one of its diff id"))
	return false
}
