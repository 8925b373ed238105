package image

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/progress"
)

// unite merges an image that was just fetched with the store's image of the same id. The id fixes configuration and
// diff ids, but not blobs: two registries may serve one image in two packings. Whoever uses the image by its id, or by
// either name, must get the content of the diff ids. That a blob unpacks to its diff id is known only from the process
// that unpacked it, which the blob may have subverted. So where the packings differ, the daemon digests the tars
// itself: the tar of the new layer, which has to match, and that of the old one, whose names are dropped unless it
// matches. The image gets a layer that is made from the tar.
//
// The caller holds the lock of the image's record. It calls done after it has recorded the image.
func unite(
	ctx context.Context, s *pipeline, rec *catalog.ImageRecord, requests []layerRequest, src source, p *progress.Reporter,
) (done func(), err error) {
	old := s.catalog.Record(rec.ID)
	if old != nil && old.IsArtifact() != rec.IsArtifact() {
		return func() {}, fail.New(errdefs.ErrFailedPrecondition, "%s is both the manifest of an artifact and the "+
			"config of an image, and the node has it as the other one: remove that first", rec.ID)
	}
	if old == nil || rec.IsArtifact() { // the manifest of an artifact fixes the blobs, too
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
		if !differ[n] {
			continue
		}
		kept, err := keepsTar(ctx, s, old.Layers[n])
		if err != nil {
			return done, fmt.Errorf("compare layer %s with the one that the node has: %w", rec.Layers[n].Blob, err)
		}
		rec.Anew = rec.Anew || !kept
	}
	return done, nil
}

// differing reports for each layer whether the store's image has a layer of another blob there. Layers that differ only
// because the layers below differ do not count: they become the same together with those.
func differing(i *catalog.Index, old, rec *catalog.ImageRecord) []bool {
	out := make([]bool, len(rec.Layers))
	for n, ref := range rec.Layers {
		was := old.Layers[n]
		finalizedAnew := isFinalized(was.ID) && i.Layer(was.ID).Blob == ref.Blob
		out[n] = i.Has(was.ID) && was.ID != ref.ID && !finalizedAnew
	}
	return out
}

// digestedHere reports whether the daemon itself has digested a layer's tar, as earlier releases did for each layer.
func digestedHere(i *catalog.Index, id string) bool {
	return i.Has(id) && isByTar(id) && i.Layer(id).Blob == ""
}

// keepsTar reports whether the tar that a layer keeps has the diff id that an image has for it. It returns an error
// when that cannot be told now: the caller has left, or the daemon lacks descriptors or memory. A layer that is damaged
// does not keep its tar.
func keepsTar(ctx context.Context, s *pipeline, ref catalog.LayerRef) (bool, error) {
	if digestedHere(s.catalog.Snapshot(), ref.ID) {
		return true, nil
	}
	sum, err := digestOfTar(ctx, s.disk.LayerDir(ref.ID), ref.DiffID.Algorithm())
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case fail.Lacking(err):
		return false, err
	case err != nil:
		reportDamage(ctx, s.catalog, ref.ID, err)
	case sum != ref.DiffID:
		err := fail.New(errdefs.ErrDataLoss, "its tar is not the one of its diff id")
		reportDamage(ctx, s.catalog, ref.ID, err)
	}
	return err == nil && sum == ref.DiffID, nil
}

// digestOfTar is the digest of the tar that is put together again from a layer.
func digestOfTar(ctx context.Context, dir string, algorithm digest.Algorithm) (digest.Digest, error) {
	t, err := openTar(ctx, dir)
	if err != nil {
		return "", err
	}
	defer t.Close()
	return algorithm.FromReader(t)
}
