package image

import (
	"context"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
)

// repacked is a source that serves the tars of layers of the store as blobs, and everything else from another source.
type repacked struct {
	source
	tars map[digest.Digest]string // the directories of layers, by the digest of the tar
}

func (r *repacked) open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if dir := r.tars[desc.Digest]; dir != "" {
		return openTar(ctx, dir)
	}
	return r.source.open(ctx, desc)
}

// tarStream reads the tar that a layer was unpacked from, as it is put together again.
type tarStream struct {
	*io.PipeReader
	over chan struct{}
}

// openTar opens the tar of the layer in dir. The caller verifies its digest, and closes it.
func openTar(ctx context.Context, dir string) (*tarStream, error) {
	tar, err := layer.OpenTar(dir)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	t := &tarStream{PipeReader: r, over: make(chan struct{})}
	go func() {
		defer close(t.over)
		_ = w.CloseWithError(tar.CopyTo(ctx, w))
	}()
	return t, nil
}

// Close returns when the last read of a file of the layer has ended.
func (t *tarStream) Close() error {
	err := t.PipeReader.Close()
	<-t.over
	return err
}

// rebuild makes a layer from the tar of another layer, other than except, that was unpacked from the same blob but
// finalized over other layers. It returns nil if there is no such layer, or none that is undamaged.
func rebuild(
	ctx context.Context, s *pipeline, w layerRequest, l *progress.Listeners, except string,
) (*rawLayer, error) {
	i := s.catalog.Snapshot()
	for _, id := range siblings(i, w, except) {
		if err := checkSize(i, id, w); err != nil {
			return nil, err
		}
		held, release := s.catalog.Leases.HoldFirst(id)
		if held == "" {
			continue
		}
		raw, err := rebuildFrom(ctx, s, w, id, l)
		release()
		if err == nil || ctx.Err() != nil || fail.Lacking(err) {
			return raw, err
		}
		reportDamage(ctx, s.catalog, id, err)
	}
	return nil, nil
}

// rebuildFrom unpacks the tar of a layer into a new directory, and verifies its diff id.
func rebuildFrom(
	ctx context.Context, s *pipeline, w layerRequest, id string, l *progress.Listeners,
) (raw *rawLayer, err error) {
	local, src, err := tarIn(w, s.disk.LayerDir(id))
	if err != nil {
		return nil, err
	}
	tell := l.Of(w.desc, progress.Rebuilding)
	part := float64(w.desc.Size) / float64(max(local.desc.Size, 1)) // progress is reported in bytes of the blob
	err = catalog.At("pull.rebuild", func() error {
		raw, err = s.ingest(ctx, local, src, func(n int64, _ string) { tell(int64(float64(n)*part), "") })
		return err
	})
	if err != nil && raw != nil {
		raw.discard()
	}
	if err != nil {
		return nil, err
	}
	return raw, nil
}

// tarIn returns the request for w's layer as the uncompressed tar that the layer in dir keeps, and the source of that.
func tarIn(w layerRequest, dir string) (layerRequest, *repacked, error) {
	tar, err := layer.OpenTar(dir)
	if err != nil {
		return layerRequest{}, nil, err
	}
	w.desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: w.diffID, Size: tar.Size}
	w.part = document.Part{}
	return w, &repacked{tars: map[digest.Digest]string{w.diffID: dir}}, nil
}

// reportDamage reports, as a check would, that a layer does not give back the tar that it was unpacked from. It reports
// nothing if the tar has the right digest but cannot be unpacked, because then the settings have changed.
func reportDamage(ctx context.Context, c *catalog.Catalog, id string, err error) {
	if k := kindOf(err); k == errdefs.ErrFailedPrecondition || k == errdefs.ErrResourceExhausted {
		return
	}
	catalog.LogDamage(ctx, c, id, err)
}
