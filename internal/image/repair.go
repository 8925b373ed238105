package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// Problems returns what Open could not read and has not been repaired since, and whether the file system is read-only
// now.
func (s *Store) Problems() []Finding {
	found := s.catalog.Unreadable()
	if catalog.ReadOnly(s.disk) {
		found = append(found, Finding{Path: s.disk.Root, Problem: "its file system is read-only: images that are whole are " +
			"served, none can be pulled or removed; look at dmesg, repair it and mount it anew"})
	}
	return found
}

// Check compares all layers with their manifests, file by file, and reports differences and what could not be read.
// With repair, it removes unreadable records, and fetches damaged layers again from the image's registry while the
// image stays usable. A layer that cannot be fetched now stays as it is, and is reported.
func (s *Store) Check(ctx context.Context, repair bool, report func(Finding)) error {
	c := &catalog.Checker{Catalog: s.catalog}
	mend := &repairer{s: s, left: map[string]struct{}{}}
	for _, f := range s.Problems() {
		if repair && f.Path != s.disk.Root {
			f.Repaired = s.sweeper.RemoveUnread(f) == nil
		}
		report(f)
	}
	for _, id := range c.LowestFirst() {
		found, err := c.Check(ctx, id)
		if err != nil {
			return failed("check image store", err)
		}
		if len(found) > 0 && repair {
			mend.repair(ctx, id, found)
		}
		for _, f := range found {
			report(f)
		}
	}
	return failed("check image store", ctx.Err())
}

// repairer replaces damaged layers by new ones from their registries. The new layer is fetched, verified and synced
// before it replaces the damaged one; running containers keep the damaged one until they end. A layer that cannot be
// fetched stays as it is.
type repairer struct {
	s    *Store
	left map[string]struct{} // the layers that are still damaged
}

// repair repairs a layer, and notes the result in found.
func (r *repairer) repair(ctx context.Context, id string, found []Finding) {
	err := r.replace(ctx, id)
	if err != nil {
		r.left[id] = struct{}{}
	}
	for i := range found {
		found[i].Repaired = err == nil
		if err != nil {
			found[i].Problem += "; not repaired: " + err.Error()
		}
	}
}

func (r *repairer) replace(ctx context.Context, id string) error {
	owners := r.s.catalog.Owners(id)
	if len(owners) == 0 {
		return r.discard(ctx, id)
	}
	var failed []error
	for _, rec := range owners {
		err := r.replaceFor(ctx, id, rec)
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed = append(failed, err)
	}
	return fmt.Errorf("it stays as it is, for it cannot be fetched now; to have it anew remove the image and pull it, "+
		"with its credentials, or import it again: %w", errors.Join(failed...))
}

// discard removes a damaged layer that no image has. A pull that needs it fetches it again.
func (r *repairer) discard(ctx context.Context, id string) error {
	if err := r.s.sweeper.Sweep(ctx); err != nil {
		return err
	}
	if r.s.catalog.Snapshot().Has(id) {
		return errors.New("no image has it, and it goes when no container uses it any more")
	}
	return nil
}

// replaceFor fetches the layer as a layer of one image, from each repository of the image in turn. It holds the image
// meanwhile.
func (r *repairer) replaceFor(ctx context.Context, id string, rec *catalog.ImageRecord) error {
	release, _ := r.s.catalog.Leases.Hold(rec.LayerIDs()...)
	defer release()
	n := slices.Index(rec.LayerIDs(), id)
	if err := r.soundBelow(rec, n); err != nil {
		return err
	}
	if done, err := r.replaceFromSibling(ctx, rec, n); done || ctx.Err() != nil {
		return err
	}
	err := errors.New("it was imported, or its registry is not known")
	for _, name := range slices.Backward(rec.Digests) {
		if err = r.replaceFrom(ctx, name, rec, n); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// soundBelow returns an error if a layer below is damaged, because a layer that is finalized over it may copy the
// damage.
func (r *repairer) soundBelow(rec *catalog.ImageRecord, n int) error {
	if r.s.catalog.Snapshot().Layer(rec.Layers[n].ID).Chain == "" {
		return nil
	}
	for _, l := range rec.Layers[:n] {
		if _, damaged := r.left[l.ID]; damaged {
			return fmt.Errorf("layer %s below it is damaged", l.ID)
		}
	}
	return nil
}

// replaceFrom fetches layer n of an image from one repository, by the name that it was pulled by and without
// credentials.
func (r *repairer) replaceFrom(ctx context.Context, name string, rec *catalog.ImageRecord, n int) error {
	ref, err := reference.Parse(name)
	if err != nil {
		return err
	}
	reg, err := r.s.pipeline.connect(ctx, ref, nil)
	if err != nil {
		return err
	}
	defer reg.Close()
	w, err := r.locate(ctx, ref, reg, rec, n)
	if err != nil {
		return err
	}
	return r.bring(ctx, rec, n, func() (*rawLayer, error) {
		raw, err := fetchBlob(ctx, r.s.pipeline, w, reg, &progress.Listeners{})
		if err != nil {
			return nil, err
		}
		return r.likeBefore(ctx, raw, w, rec.Layers[n].ID)
	})
}

// replaceFromSibling makes layer n of an image again from the tar of another layer of the same blob. done is false if
// there is none.
func (r *repairer) replaceFromSibling(ctx context.Context, rec *catalog.ImageRecord, n int) (done bool, err error) {
	ref := rec.Layers[n]
	w := layerRequest{desc: ocispec.Descriptor{Digest: ref.Blob, Size: ref.Size}, diffID: ref.DiffID, alone: true}
	err = r.bring(ctx, rec, n, func() (raw *rawLayer, err error) {
		raw, err = rebuild(ctx, r.s.pipeline, w, &progress.Listeners{}, ref.ID)
		done = raw != nil
		return raw, err
	})
	return done, err
}

// likeBefore turns a fetched layer into one that may replace the damaged one: the layer itself if it is of the same
// blob. If the registry serves another blob by now, or the damaged layer was made from a tar, it is unpacked from its
// tar.
func (r *repairer) likeBefore(ctx context.Context, raw *rawLayer, w layerRequest, id string) (*rawLayer, error) {
	if old := r.s.catalog.Snapshot().Layer(id); old.Blob == w.desc.Digest {
		return raw, nil
	}
	discard := raw.discard
	defer func() { discard() }()
	local, src, err := tarIn(w, raw.dir)
	if err != nil {
		return nil, err
	}
	made, err := r.s.pipeline.ingest(ctx, local, src, func(int64, string) {})
	discard = r.s.pipeline.discardAfter(err, w, discard)
	return made, err
}

// bring makes a layer by get, and replaces layer n of an image by it.
func (r *repairer) bring(ctx context.Context, rec *catalog.ImageRecord, n int, get func() (*rawLayer, error)) error {
	// This flusher is not the syncer's: a write error is reported to a flusher once, and the syncer must not miss one.
	flush, done, err := catalog.DiskFlusher(r.s.disk.Root)
	if err != nil {
		return err
	}
	defer func() { _ = done() }()
	raw, err := get()
	if raw == nil || err != nil {
		return err
	}
	defer func() { raw.discard() }() // finish may replace it
	made, err := r.finish(ctx, raw, rec, n)
	if err != nil {
		return err
	}
	// It is synced before it is renamed, so that a power cut leaves either the old layer or the whole new one.
	if err := catalog.At("repair.sync", flush); err != nil {
		return err
	}
	return r.s.catalog.ReplaceLayer(raw.dir, made)
}

// locate asks a registry for the manifest of an image, and finds layer n in it. The verifier is asked as for any pull.
func (r *repairer) locate(
	ctx context.Context, ref reference.Reference, reg registry, rec *catalog.ImageRecord, n int,
) (layerRequest, error) {
	desc, err := reg.Resolve(ctx)
	if err == nil {
		err = r.s.pipeline.verify(ctx, Question{Name: ref.String(), Descriptor: desc})
	}
	if err != nil {
		return layerRequest{}, err
	}
	var found *chosen
	if rec.IsArtifact() {
		found, err = r.artifact(rec)
	} else {
		found, err = r.choose(ctx, desc, reg, rec)
	}
	if err != nil {
		return layerRequest{}, err
	}
	defer found.done()
	w := requestsOf(found)[n].as(r.s.catalog.Snapshot().Layer(rec.Layers[n].ID))
	w.alone = true // it gets the id of the damaged layer, which depends on no other blob
	return w, nil
}

// choose finds the image in what its name leads to.
func (r *repairer) choose(
	ctx context.Context, desc ocispec.Descriptor, reg registry, rec *catalog.ImageRecord,
) (*chosen, error) {
	c, err := r.s.pipeline.chooser(reg, rec.Platform)
	if err != nil {
		return nil, err
	}
	found, err := c.choose(ctx, desc)
	if err != nil {
		return nil, err
	}
	if id := found.doc.ID().String(); id != rec.ID {
		found.done()
		return nil, fail.New(errdefs.ErrDataLoss, "%s is the image %s now", desc.Digest, id)
	}
	return found, nil
}

// artifact reads the layers of an artifact from its own manifest, which its record has. An index that the name leads to
// may have artifacts for several platforms, and no record says for which one this was chosen.
func (r *repairer) artifact(rec *catalog.ImageRecord) (*chosen, error) {
	img, ok := r.s.Get(rec.ID)
	if !ok {
		return nil, fail.New(errdefs.ErrNotFound, "it was removed meanwhile")
	}
	raw, err := img.RawConfig()
	if err != nil {
		return nil, err
	}
	found := &chosen{done: func() {}}
	if err := json.Unmarshal(raw, &found.doc.Manifest); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "read the manifest of artifact %s: %w", rec.ID, err)
	}
	m := &found.doc.Manifest
	parts, err := document.PartsOf(m)
	if err == nil && len(parts) != len(rec.Layers) {
		err = fail.New(errdefs.ErrDataLoss, "its manifest has %d layers, and its record %d", len(parts), len(rec.Layers))
	}
	if err != nil {
		return nil, err
	}
	found.doc.Artifact = &document.Artifact{Type: document.TypeOf(m), Parts: parts}
	return found, nil
}

// finish finalizes a fetched layer if it depends on those below, and writes its record.
func (r *repairer) finish(
	ctx context.Context, raw *rawLayer, rec *catalog.ImageRecord, n int,
) (catalog.LayerRecord, error) {
	old := r.s.catalog.Snapshot().Layer(rec.Layers[n].ID)
	if old.Chain != "" {
		lowers := rec.LayerIDs()[:n]
		w := layerRequest{desc: ocispec.Descriptor{Digest: old.Blob}, alone: true}
		finalize := func() error { return finalizeLayer(ctx, r.s.pipeline, w, raw, lowers) }
		if err := catalog.At("repair.finalize", finalize); err != nil {
			return old, err
		}
	} else if !raw.result.Independent() {
		return old, fail.New(errdefs.ErrDataLoss, "it depends on the layers below it, and did not when it was pulled")
	}
	made := describeLayer(raw, catalog.LayerRecord{
		ID: old.ID, DiffID: old.DiffID, Chain: old.Chain, Boot: r.s.pipeline.bootID, Durable: true,
		Blob: old.Blob, BlobSize: old.BlobSize, ProvenBy: old.ProvenBy,
	})
	err := catalog.At("repair.describe", func() error { return catalog.Describe(raw.dir, made) })
	return made, err
}
