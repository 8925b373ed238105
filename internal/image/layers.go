package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/image/layer"
	"berth/internal/limit"
	"berth/internal/room"
)

// pipeline brings images in: it fetches, proves and unpacks.
type pipeline struct {
	*catalog
	cfg      Config // what Reconfigure cannot change; the rest is behind now
	settings atomic.Pointer[settings]
	platform target
	fetching atomic.Int64       // layers that have a slot
	layers   flights[*rawLayer] // by diff id
	configs  flights[[]byte]    // by digest
	settling keyLocks           // by chain id: one settles at a time
}

// want is one layer of an image to be had.
type want struct {
	desc   ocispec.Descriptor
	diffID digest.Digest
	chain  digest.Digest // of the layer with all below it
}

// Layer ids: d and the diff id for a layer that is the same over anything, c and the chain id for one that was settled.
func plainID(d digest.Digest) string   { return "d" + idHex(d) }
func settledID(d digest.Digest) string { return "c" + idHex(d) }

// idHex is the hex of a digest, with the algorithm before it when it is not the usual one.
func idHex(d digest.Digest) string {
	if d.Algorithm() == digest.SHA256 {
		return d.Encoded()
	}
	return strings.ReplaceAll(d.String(), ":", "-")
}

// rawLayer is a layer that was fetched, proven and unpacked. It has its id already when nothing below matters to it.
type rawLayer struct {
	id      string
	release func() // of the hold on id

	dir     string
	discard func()
	result  *layer.Result
	mu      sync.Mutex // guards taken
	taken   bool
}

// take makes the caller the only one who may settle the layer.
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

// holding is a caller's share in a layer: held under its id, or raw until it is settled.
type holding struct {
	id      string
	raw     *rawLayer
	flight  *flight[*rawLayer]
	release func()
}

// obtain gets a layer: one that is there, one that is on its way, or one that it fetches itself.
func (s *pipeline) obtain(ctx context.Context, w want, src source, p *reporter) (*holding, error) {
	key := w.diffID.String()
	for {
		h, owner, err := s.join(ctx, w, src, p)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
		}
		if h.id != "" {
			p.report(Progress{Layer: w.desc.Digest, Done: w.desc.Size, Total: w.desc.Size, Phase: PhaseExists})
			return h, nil
		}
		fl, leave := h.flight, h.release
		raw, err := fl.wait(ctx)
		if err == nil {
			return &holding{id: raw.id, raw: raw, flight: fl, release: leave}, nil
		}
		s.layers.forget(key, fl)
		leave()
		if owner || ctx.Err() != nil || everybodys(err, src) {
			return nil, fmt.Errorf("layer %s: %w", w.desc.Digest, err)
		}
		// Another's fetch failed for a reason of its own: try with this caller's.
	}
}

// fetchError is why a layer could not be fetched, and from where.
type fetchError struct {
	place any
	err   error
}

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

// everybodys says whether another caller's failure is also that of a caller with src. Else all who wait would fail one after
// the other, each after as long a time. A failure that may be due to credentials, or to the other's leaving, is not.
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

// join holds a layer that is there, or the flight of one that is not. It waits for who settles the very same meanwhile: for
// a moment that one is neither on its way nor there.
func (s *pipeline) join(ctx context.Context, w want, src source, p *reporter) (h *holding, owner bool, err error) {
	unlock, err := s.settling.lock(ctx, w.chain.String())
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if id, release := s.holdPresent(plainID(w.diffID), settledID(w.chain)); id != "" {
		return &holding{id: id, release: release}, false, nil
	}
	fl, owner, leave := s.layers.join(w.diffID.String(), p, func(ctx context.Context, l *listeners) (*rawLayer, error) {
		raw, err := s.fetchLayer(ctx, w, src, l)
		if err != nil {
			err = &fetchError{place(src), err}
		}
		return raw, err
	}, dropRaw)
	return &holding{flight: fl, release: leave}, owner, nil
}

// fetchLayer streams one blob into a directory of its own and proves it. l hears how far it is.
func (s *pipeline) fetchLayer(ctx context.Context, w want, src source, l *listeners) (*rawLayer, error) {
	tell := func(phase string) func(int64) {
		return func(done int64) {
			l.report(Progress{Layer: w.desc.Digest, Done: done, Total: w.desc.Size, Phase: phase})
		}
	}
	if id, release := s.holdPresent(plainID(w.diffID)); id != "" {
		tell(PhaseExists)(w.desc.Size)
		return &rawLayer{id: id, release: release}, nil
	}
	tell(PhaseWaiting)(0)
	slots := s.now().slots
	if err := slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer slots.Release(1)
	s.fetching.Add(1)
	defer s.fetching.Add(-1)
	raw, err := s.ingest(ctx, w, src, tell(PhaseDownloading))
	for errors.Is(err, errLied) {
		raw, err = s.ingest(ctx, w, src, tell(PhaseDownloading))
	}
	if err == nil && raw.result.Independent() {
		raw.id, raw.release, err = s.finish(raw, layerRecord{ID: plainID(w.diffID), DiffID: w.diffID})
		if err != nil {
			raw.discard()
		}
	}
	if err != nil {
		return nil, err
	}
	if raw.result.Unsupported > 0 {
		s.log.Warn("file system does not keep all extended attributes of a layer", "layer", w.diffID, "lost", raw.result.Unsupported)
	}
	tell(PhaseDone)(w.desc.Size)
	return raw, nil
}

// errLied says that a host served what the digest does not promise, and that there is another to ask.
var errLied = errors.New("another host may serve what was promised")

// ingest transfers a blob into a new directory.
func (s *pipeline) ingest(ctx context.Context, w want, src source, tell func(int64)) (*rawLayer, error) {
	dir, discard, err := s.newIngest("pull.ingest")
	if err != nil {
		return nil, err
	}
	raw := &rawLayer{dir: dir, discard: discard}
	err = at("pull.unpack", func() (err error) {
		raw.result, err = s.transfer(ctx, w, src, dir, tell)
		return err
	})
	if err != nil {
		discard()
		return nil, err
	}
	return raw, nil
}

// transfer moves a blob from its source into dir: digest, inflate, digest, unpack.
func (s *pipeline) transfer(ctx context.Context, w want, src source, dir string, tell func(int64)) (*layer.Result, error) {
	rc, err := src.open(ctx, w.desc)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	blob := newBlobReader(rc, w.desc, tell)
	res, diff, err := s.inflate(ctx, blob, w.diffID.Algorithm(), dir)
	if err != nil {
		err = blame(ctx, blob, err)
	} else {
		err = blob.prove()
	}
	if blob.lied {
		if again, err := distrust(rc, err); again {
			return nil, fmt.Errorf("%w: %w", errLied, err)
		} else if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if diff != w.diffID {
		return nil, fail.New(errdefs.ErrDataLoss, "content has the diff id %s, not the %s that the config promises", diff,
			w.diffID)
	}
	return res, nil
}

func (s *pipeline) inflate(ctx context.Context, blob io.Reader, alg digest.Algorithm, dir string) (*layer.Result, digest.Digest, error) {
	received := readAhead(blob, nil)
	defer received.close()
	plain, err := layer.Decompress(ctx, received)
	if err != nil {
		return nil, "", err
	}
	defer plain.Close()
	sum := alg.Digester()
	stream := readAhead(plain, sum.Hash())
	defer stream.close()
	now := s.now()
	limits := layer.Limits{Bytes: now.MaxLayerBytes, Entries: now.MaxLayerEntries, Memory: now.MaxLayerMemoryBytes}
	res, err := layer.Unpack(ctx, stream, dir, limits)
	if err != nil {
		return nil, "", err // the rest is still being added up
	}
	return res, sum.Digest(), nil
}

// blame finds the reason behind a layer that could not be unpacked: a blob that is not what was promised comes first, for
// then its content means nothing. A full disk, a registry that went away and the caller's end are what they are.
func blame(ctx context.Context, blob *blobReader, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if k := kindOf(err); isRemote(err) || room.Lacking(err) || k == errdefs.ErrDataLoss {
		return err
	}
	lie := blob.prove()
	switch {
	case lie != nil && blob.lied:
		return lie
	case fail.As[*layer.HostileError](err) || fail.As[*limit.Error](err):
		return err
	case lie != nil:
		return lie
	}
	return fail.New(errdefs.ErrFailedPrecondition, "its content is as promised, but cannot be unpacked: %w", err)
}

// settle gives a raw layer its place over those below it, and its id.
func (s *pipeline) settle(ctx context.Context, w want, h *holding, lowers []string) error {
	unlock, err := s.settling.lock(ctx, w.chain.String())
	if err != nil {
		return err
	}
	defer unlock()
	id, release := s.holdPresent(settledID(w.chain))
	if id == "" {
		if !h.raw.take() {
			return errTaken
		}
		s.layers.forget(w.diffID.String(), h.flight)
		err := at("pull.settle", func() error {
			return layer.Settle(ctx, h.raw.dir, h.raw.result, s.topmostFirst(lowers))
		})
		if err != nil {
			return fmt.Errorf("layer %s: %w", w.desc.Digest, err)
		}
		if id, release, err = s.finish(h.raw, layerRecord{ID: settledID(w.chain), DiffID: w.diffID, Chain: w.chain}); err != nil {
			return err
		}
	}
	h.release()
	h.id, h.raw, h.release = id, nil, release
	return nil
}

// errTaken says that the raw layer went to another image, where other layers are below it.
var errTaken = errors.New("the layer was settled elsewhere")

// finish gives a proven layer its name. It is held for the caller.
func (s *pipeline) finish(raw *rawLayer, rec layerRecord) (id string, release func(), err error) {
	rec.Bytes, rec.Inodes, rec.Opaque, rec.Boot = raw.result.Bytes, raw.result.Inodes, raw.result.Opaque, s.boot
	rec.Skeleton = true
	if err := at("pull.describe", func() error { return layerKind.Write(filepath.Join(raw.dir, "layer"), rec) }); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present[rec.ID] == nil {
		if err := s.place(raw.dir, rec); err != nil {
			return "", nil, err
		}
	}
	raw.discard() // what is left of the directory, and its name
	return rec.ID, s.holdLocked([]string{rec.ID}), nil
}
