package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/inflate"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
	"berth/internal/limit"
)

// pipeline fetches, verifies and unpacks images.
type pipeline struct {
	logger     *slog.Logger
	bootID     string
	pullSeen   func(took time.Duration, err error)
	disk       *catalog.Disk
	catalog    *catalog.Catalog
	sweeper    *catalog.Sweeper
	current    current // settings, which Reconfigure changes
	platform   target
	layers     singleflight[*rawLayer] // by flightKey
	proving    singleflight[struct{}]  // by flightKey
	configs    singleflight[[]byte]    // by origin and digest
	finalizing keyLocks                // by contentName; held while a layer is finalized
	records    keyLocks                // by image id; held while an image is united with the record of the store
	proofs     proofs
	look       time.Duration // the period over which the speed of transfers is measured: defaultLook, less in tests
	inflater   inflater
	unpackers  *unpackers // nil if the daemon unpacks

	fetched atomic.Uint64 // bytes of layers, from registries
}

func newPipeline(cfg Config, d *catalog.Disk, c *catalog.Catalog, sweeper *catalog.Sweeper, platform target) *pipeline {
	s := &pipeline{
		logger: cfg.Logger, bootID: cfg.BootID, pullSeen: cfg.PullSeen,
		disk: d, catalog: c, sweeper: sweeper, platform: platform,
		inflater: inflater{cfg.Gunzip, gunzipFrom, cfg.Logger},
	}
	s.current.settings.Store(newSettings(cfg, nil))
	return s
}

// settings returns the settings in force.
func (s *pipeline) settings() *settings { return s.current.settings.Load() }

// layerRequest asks for one layer of an image.
type layerRequest struct {
	desc   ocispec.Descriptor
	part   document.Part  // what becomes of the blob, of an artifact
	diffID digest.Digest  // empty if nothing promises one: of an artifact, it is known once the layer is unpacked
	chain  digest.Digest  // the chain id: of the layer and all below it; known if the diff id is
	left   error          // the failure of the program, after which the library inflates the layer
	alone  bool           // the process that unpacks it must not have had other layers
	below  []layerRequest // the layers below it, the lowest first
	lowers []string       // their ids, once they are all there
	use    *imageUse      // what the layers of the image take; nil if the layer is alone
}

// algorithm is that of the diff id.
func (w layerRequest) algorithm() digest.Algorithm {
	if w.diffID == "" { // of an artifact, whose plain tar has the digest of its blob
		return w.desc.Digest.Algorithm()
	}
	return w.diffID.Algorithm()
}

// as returns the request for a layer that the store has.
func (w layerRequest) as(l catalog.LayerRecord) layerRequest {
	if w.diffID == "" {
		w.diffID = l.DiffID
	}
	return w
}

// flightKey is the key of fetching or proving a layer. It includes the origin, so callers share the work only with
// others of their origin: another origin has to prove that it has the blob, and must not be held up by a slow one. It
// includes the diff id, which a flight verifies for those who share it.
func flightKey(s *pipeline, w layerRequest, src source) string {
	return contentName(w) + " " + w.diffID.String() + " " + originOf(s, src, w.desc.Digest).name
}

// rawLayer is a layer that was fetched, verified and unpacked. It has its id already if it does not depend on the
// layers below.
type rawLayer struct {
	id      string
	release func() // releases the hold on id

	dir     string
	discard func()
	result  *layer.Result
	diff    digest.Digest   // of the tar, as it was unpacked
	after   []digest.Digest // the blobs that the process which unpacked it had before
	mu      sync.Mutex      // guards taken
	taken   bool
}

// take makes the caller the only one that may finalize the layer. It reports whether the caller was the first.
func (r *rawLayer) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.taken
	r.taken = true
	return !was
}

func dropRaw(r *rawLayer) {
	if r.id != "" {
		r.release()
		return
	}
	r.discard()
}

// layerLease is a caller's hold on a layer: on its id, or on the raw layer until it is finalized.
type layerLease struct {
	id      string
	over    []string // the layers that the layer id was finalized over
	raw     *rawLayer
	flight  *flight[*rawLayer]
	release func()
}

// fits reports whether a layer has an id and may be used over the given layers.
func (h *layerLease) fits(lowers []string) bool {
	return h.id != "" && (h.over == nil || slices.Equal(h.over, lowers))
}

// obtain returns a layer: the store's, after the source has proven that it has the blob; one that is being fetched from
// the same origin; or one that it fetches itself.
func (s *pipeline) obtain(ctx context.Context, w layerRequest, src source, p *progress.Reporter) (*layerLease, error) {
	for {
		h, owner, err := s.join(ctx, w, src, p)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
		}
		if h.id != "" {
			known := w.as(s.catalog.Snapshot().Layer(h.id))
			if err := prove(ctx, s, h.id, known, src, p); err != nil {
				h.release()
				return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
			}
			p.Report(progress.Event{Layer: w.desc.Digest, Done: w.desc.Size, Total: w.desc.Size, Phase: progress.Exists})
			return h, nil
		}
		fl, leave := h.flight, h.release
		raw, err := fl.wait(ctx)
		if err == nil {
			return &layerLease{id: raw.id, raw: raw, flight: fl, release: leave}, nil
		}
		s.layers.forget(fl)
		leave()
		if owner || ctx.Err() != nil || everybodys(err, src) {
			return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
		}
		// Another's fetch failed for a reason of its own: try with this caller's.
	}
}

// fetchError is the failure to fetch a blob, with the source.
type fetchError struct {
	place any
	err   error
}

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

// everybodys reports whether another caller's failure is also the failure of a caller with src. If so, the callers that
// wait need not try one after another, each for as long. A failure that may come from the other's credentials, or from
// its leaving, does not count.
func everybodys(err error, src source) bool {
	var failed *fetchError
	switch kindOf(err) {
	case errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition:
		return true
	case crierrors.ErrRegistryUnavailable, errdefs.ErrDataLoss:
		return errors.As(err, &failed) && failed.place == place(src)
	}
	return false
}

// join holds the store's layer, or else joins or starts the flight that fetches it. It first waits for a caller that
// finalizes the same blob: for a moment that layer is neither in a flight nor in the store.
func (s *pipeline) join(
	ctx context.Context, w layerRequest, src source, p *progress.Reporter,
) (h *layerLease, owner bool, err error) {
	unlock, err := s.finalizing.lock(ctx, contentName(w))
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if h := holdStanding(s, w); h != nil {
		return h, false, nil
	}
	fl, owner, leave := s.layers.join(flightKey(s, w, src), p, fetchFrom(s, w, src), dropRaw)
	return &layerLease{flight: fl, release: leave}, owner, nil
}

// fetchFrom returns the work of a flight that fetches a layer from src.
func fetchFrom(s *pipeline, w layerRequest, src source) func(context.Context, *progress.Listeners) (*rawLayer, error) {
	return func(ctx context.Context, l *progress.Listeners) (*rawLayer, error) {
		raw, err := s.fetchLayer(ctx, w, src, l)
		if err != nil {
			err = &fetchError{place(src), err}
		}
		return raw, err
	}
}

// holdStanding holds the store's layer for w. It returns nil if there is none.
func holdStanding(s *pipeline, w layerRequest) *layerLease {
	id, lowers := standing(s.catalog.Snapshot(), w)
	id, release := s.catalog.Leases.HoldFirst(id)
	if id == "" {
		return nil
	}
	return &layerLease{id: id, over: lowers, release: release}
}

// fetchLayer makes a layer, and gives it its id if it does not depend on the layers below. It reports progress to l.
func (s *pipeline) fetchLayer(
	ctx context.Context, w layerRequest, src source, l *progress.Listeners,
) (*rawLayer, error) {
	raw, err := makeLayer(ctx, s, w, src, l)
	if err != nil || raw.id != "" {
		return raw, err
	}
	if raw.result.Independent() && len(raw.after) == 0 {
		if raw.id, raw.release, err = finish(s, raw, w, false); err != nil {
			raw.discard()
			return nil, err
		}
	}
	if raw.result.Unsupported > 0 {
		s.logger.Warn("file system does not keep all extended attributes of a layer",
			"layer", w.desc.Digest, "lost", raw.result.Unsupported)
	}
	l.Of(w.desc, progress.Done)(w.desc.Size, "")
	return raw, nil
}

// makeLayer returns a layer that has been added meanwhile, or makes one: from the tar of another layer of the same blob
// if the source has proven that it has the blob, or else from the blob.
func makeLayer(ctx context.Context, s *pipeline, w layerRequest, src source, l *progress.Listeners) (*rawLayer, error) {
	if possesses(s, originOf(s, src, w.desc.Digest), w) {
		if id, release := s.catalog.Leases.HoldFirst(blobID(w)); id != "" {
			diff := s.catalog.Snapshot().Layer(id).DiffID
			if w.diffID == "" || w.diffID == diff {
				l.Of(w.desc, progress.Exists)(w.desc.Size, "")
				return &rawLayer{id: id, release: release}, nil
			}
			release() // the config promises another tar than this blob is: unpacking it proves who is right
		}
		if raw, err := rebuild(ctx, s, w, l, ""); raw != nil || err != nil {
			return raw, err
		}
	}
	return fetchBlob(ctx, s, w, src, l)
}

// fetchBlob streams a blob into a new directory, trying one host after another, and notes who has proven to have it.
func fetchBlob(ctx context.Context, s *pipeline, w layerRequest, src source, l *progress.Listeners) (*rawLayer, error) {
	ctx, paced, done, err := takeTurn(ctx, s, w, src, l)
	if err != nil {
		return nil, err
	}
	defer done()
	raw, err := fetch(ctx, s, w, paced, l.Of(w.desc, progress.Downloading))
	if err == nil {
		noteProof(s, src, w.desc.Digest)
	}
	return raw, err
}

// fetch fetches and unpacks a blob. It tries again where another host or another way may succeed: with the library
// after the program has failed, or by way of the disk after a slow host has held memory for too long.
func fetch(ctx context.Context, s *pipeline, w layerRequest, src source, tell progress.Tell) (*rawLayer, error) {
	raw, err := s.ingest(ctx, w, src, tell)
	for more := true; more; {
		if w, more = again(w, err); more {
			src = afterwards(src, err)
			raw, err = s.ingest(ctx, w, src, tell)
		}
	}
	if err == nil && w.left != nil {
		s.inflater.fetchedAgain(w)
	}
	return raw, err
}

// takeTurn waits for a slot for a layer, like beginDownload. A tar on the disk needs none.
func takeTurn(
	ctx context.Context, s *pipeline, w layerRequest, src source, l *progress.Listeners,
) (begun context.Context, paced source, done func(), err error) {
	if r, ok := src.(*repacked); ok && r.tars[w.desc.Digest] != "" {
		return ctx, src, func() {}, nil
	}
	l.Of(w.desc, progress.Waiting)(0, "")
	return beginDownload(ctx, s.settings().slots, src, &s.fetched)
}

// errMismatch is returned when a host has served other content than the digest promises and another host is left to
// ask.
var errMismatch = errors.New("another host may serve what was promised")

// ingest transfers a blob into a new directory.
func (s *pipeline) ingest(ctx context.Context, w layerRequest, src source, tell progress.Tell) (*rawLayer, error) {
	if err := enough(ctx, s, spoolSize(src, w.desc)); err != nil {
		return nil, err
	}
	dir, discard, err := s.disk.NewIngest("pull.ingest")
	if err != nil {
		return nil, err
	}
	raw := &rawLayer{dir: dir, discard: discard}
	err = catalog.At("pull.unpack", func() (err error) {
		made, err := s.transfer(ctx, w, src, dir, tell)
		if err == nil {
			raw.result, raw.diff, raw.after = made.result, made.diff, made.after
		}
		return err
	})
	if err != nil {
		s.discardAfter(err, w, discard)()
		return nil, err
	}
	return raw, nil
}

// discardAfter returns what removes the directory of a layer whose process has failed. Where the process hangs in the
// kernel, whoever touches the directory may hang, too: then the removal waits for the disk, and its caller does not.
func (s *pipeline) discardAfter(err error, w layerRequest, discard func()) func() {
	if !fail.As[*hungError](err) {
		return discard
	}
	s.logger.Error("a layer is given up, and its directory is removed when the disk goes on", "layer", w.desc.Digest,
		"error", err)
	return func() { go discard() }
}

// transfer moves a blob from its source into dir: digest, inflate, digest, unpack.
func (s *pipeline) transfer(
	ctx context.Context, w layerRequest, src source, dir string, tell progress.Tell,
) (*made, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	rc, tell, err := openIn(ctx, s, dir, src, w.desc, tell)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	blob := newBlobReader(rc, w.desc, func(done int64) { tell(done, senderOf(rc)) })
	blob.rest = restOf(rc, end, cmp.Or(s.look, defaultLook))
	defer blob.rest.stop()
	ctx = withHolder(ctx, rc, end)
	made, err := s.inflate(ctx, blob, w, dir)
	if err != nil {
		err = blame(ctx, blob, err)
	} else {
		err = blob.prove()
	}
	if blob.mismatch {
		if again, err := reportMismatch(rc, err); again {
			return nil, fmt.Errorf("%w: %w", errMismatch, err)
		} else if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if err := made.diff.Validate(); err != nil {
		return nil, fail.New(errdefs.ErrInternal, "the unpacker says the diff id %q: %w", made.diff, err)
	}
	if w.diffID != "" && made.diff != w.diffID {
		return nil, fail.New(errdefs.ErrDataLoss, "content has the diff id %s, not the %s that the config promises",
			made.diff,
			w.diffID)
	}
	return made, nil
}

// blame returns the cause of a failure to unpack a layer. If the blob is not the promised one, that is the cause,
// because its content means nothing then. A full disk, a lost registry and the caller's end are causes by themselves.
func blame(ctx context.Context, blob *blobReader, err error) error {
	if fail.As[*hungError](err) {
		return err
	}
	if blob.rest.gaveUp() {
		return unproven(err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if fail.As[*inflate.Error](err) {
		return err
	}
	k := kindOf(err)
	if isRemote(err) || diskspace.Lacking(err) || k == errdefs.ErrDataLoss || fail.As[*UnpackerError](err) {
		return err
	}
	mismatch := blob.prove()
	switch {
	case blob.rest.gaveUp():
		return unproven(err)
	case mismatch != nil && blob.mismatch:
		return mismatch
	case fail.As[*layer.HostileError](err) || fail.As[*limit.Error](err):
		return err
	case mismatch != nil:
		return mismatch
	}
	return fail.New(errdefs.ErrFailedPrecondition, "its content is as promised, but cannot be unpacked: %w", err)
}

// finalize finalizes a raw layer over those below it, and gives it its id.
func (s *pipeline) finalize(ctx context.Context, w layerRequest, h *layerLease) error {
	unlock, err := s.finalizing.lock(ctx, contentName(w))
	if err != nil {
		return err
	}
	defer unlock()
	there := holdStanding(s, w)
	if there == nil {
		if there, err = finalizeRaw(ctx, s, w, h); err != nil {
			return err
		}
	}
	h.release()
	*h = *there
	return nil
}

// finalizeRaw finalizes a raw layer, after it has taken it for the caller alone.
func finalizeRaw(ctx context.Context, s *pipeline, w layerRequest, h *layerLease) (*layerLease, error) {
	if !h.raw.isOf(w) {
		s.layers.forget(h.flight)
		return nil, errTaken
	}
	if !h.raw.take() {
		return nil, errTaken
	}
	s.layers.forget(h.flight)
	err := catalog.At("pull.finalize", func() error {
		return finalizeLayer(ctx, s, w, h.raw, w.lowers)
	})
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
	}
	id, release, err := finish(s, h.raw, w, true)
	if err != nil {
		return nil, err
	}
	return &layerLease{id: id, over: w.lowers, release: release}, nil
}

// isOf reports whether a layer may be used for w: whether the process that unpacked it had no layers before but those
// below w in its image.
func (r *rawLayer) isOf(w layerRequest) bool {
	return !slices.ContainsFunc(r.after, func(blob digest.Digest) bool {
		return !slices.ContainsFunc(w.below, func(b layerRequest) bool { return b.desc.Digest == blob })
	})
}

// errTaken is returned when another image, with other layers below, has taken the raw layer.
var errTaken = errors.New("the layer was finalized elsewhere")

// finish renames a verified layer to its id, and holds it for the caller.
func finish(s *pipeline, raw *rawLayer, w layerRequest, finalized bool) (id string, release func(), err error) {
	if w.diffID == "" {
		w.diffID = raw.diff
		w.chain = chainOver(s.catalog.Snapshot(), w.lowers, raw.diff)
	}
	rec := describeLayer(raw, catalog.LayerRecord{
		ID: blobID(w), DiffID: w.diffID, Boot: s.bootID,
		Blob: w.desc.Digest, BlobSize: w.desc.Size, ProvenBy: s.proofs.of(w.desc.Digest),
	})
	if finalized {
		rec.ID, rec.Chain = finalizedID(w, stackName(w.lowers)), w.chain
	}
	if err := catalog.At("pull.describe", func() error { return catalog.Describe(raw.dir, rec) }); err != nil {
		return "", nil, err
	}
	return s.catalog.KeepLayer(raw.dir, raw.discard, rec)
}

// chainOver returns the chain id of a tar over layers of the store, the lowest first.
func chainOver(i *catalog.Index, lowers []string, diff digest.Digest) digest.Digest {
	var diffs []digest.Digest
	for _, id := range lowers {
		diffs = append(diffs, i.Layer(id).DiffID)
	}
	return document.ChainIDs(append(diffs, diff))[len(lowers)]
}

// describeLayer adds the results of unpacking a layer to its record.
func describeLayer(raw *rawLayer, rec catalog.LayerRecord) catalog.LayerRecord {
	rec.Bytes, rec.Inodes, rec.Opaque, rec.TarSplit = raw.result.Bytes, raw.result.Inodes, raw.result.Opaque, true
	rec.Unmarked = !raw.result.Marked
	return rec
}
