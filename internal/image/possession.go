package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// The values of Config.Possession. A layer of the store is used without a fetch if its blob was served before by the
// same repository, or by the same registry.
const (
	PossessionRepository = "repository"
	PossessionRegistry   = "registry"
)

// origin is a repository, or a registry host with all its repositories, that has to prove that it has a blob. The empty
// origin stands for archives, which root imports and which need no proof.
type origin struct {
	name string
	host bool
}

// originOf returns the origin of a blob that is read from src.
func originOf(s *pipeline, src source, blob digest.Digest) origin {
	switch r := src.(type) {
	case registry:
		if s.settings().Possession == PossessionRegistry {
			return origin{r.host, true}
		}
		return origin{name: r.repository}
	case *repacked:
		if dir := r.tars[blob]; dir != "" {
			return origin{name: "layer " + dir} // an origin of its own, without proofs
		}
		return originOf(s, r.source, blob)
	}
	return origin{}
}

// covers reports whether a repository, or a reference into it, belongs to the origin.
func (o origin) covers(name string) bool {
	if o.host {
		return strings.HasPrefix(name, o.name+"/")
	}
	return reference.RepositoryOf(name) == o.name
}

// named reports whether an image has a name in the origin. It got that name when the origin had proven all of it, or
// from root.
func (o origin) named(tags, digests []string) bool {
	return slices.ContainsFunc(tags, o.covers) || slices.ContainsFunc(digests, o.covers)
}

// possesses reports whether the origin has served the blob of a layer before, by itself or with an image of the store.
func possesses(s *pipeline, o origin, w layerRequest) bool {
	if o.name == "" || s.proofs.has(o, w.desc.Digest) {
		return true
	}
	for img := range s.catalog.Snapshot().ImagesFrom(w.diffID) {
		part := slices.ContainsFunc(img.LayerRefs, func(l catalog.LayerRef) bool { return l.Blob == w.desc.Digest })
		if part && o.named(img.RepoTags, img.RepoDigests) {
			return true
		}
	}
	return false
}

// knownConfig returns the config of an image of the store. It returns nil if there is none that the origin has proven.
func knownConfig(s *pipeline, id digest.Digest, from origin) []byte {
	img, ok := s.catalog.Snapshot().FindWhole(id.String())
	if !ok || img.ID != id.String() {
		return nil
	}
	if from.name != "" && !s.proofs.has(from, id) && !from.named(img.RepoTags, img.RepoDigests) {
		return nil
	}
	raw, err := img.RawConfig()
	if err != nil {
		return nil
	}
	return raw
}

// proofs remembers which repositories have served a blob, beside the records of images: a pull may prove some blobs of
// an image and then fail. When there are too many, some are dropped, and have to be proven again.
type proofs struct {
	mu     sync.Mutex // guards what follows
	byBlob map[digest.Digest][]string
}

const (
	maxProvenBlobs = 4096
	maxProvers     = 16 // per blob
)

// note records that repositories have proven a blob.
func (p *proofs) note(blob digest.Digest, repositories ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(repositories) == 0 {
		return
	}
	if p.byBlob == nil {
		p.byBlob = map[digest.Digest][]string{}
	}
	for other := range p.byBlob {
		if len(p.byBlob) < maxProvenBlobs {
			break
		}
		delete(p.byBlob, other)
	}
	all := reference.Append(p.byBlob[blob], repositories)
	p.byBlob[blob] = all[max(0, len(all)-maxProvers):]
}

// of returns the repositories that have proven a blob.
func (p *proofs) of(blob digest.Digest) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.byBlob[blob])
}

func (p *proofs) has(o origin, blob digest.Digest) bool {
	return slices.ContainsFunc(p.of(blob), o.covers)
}

// noteProof records that src has served a blob with the right digest.
func noteProof(s *pipeline, src source, blob digest.Digest) {
	if r, ok := src.(registry); ok {
		s.proofs.note(blob, r.repository)
	}
}

// prove makes sure that src has the blob of a layer of the store. Unless that is known, it fetches the blob and digests
// it. Callers that need the same proof from the same origin share it.
func prove(ctx context.Context, s *pipeline, id string, w layerRequest, src source, p *progress.Reporter) error {
	for !possesses(s, originOf(s, src, w.desc.Digest), w) {
		key := flightKey(s, w, src)
		fl, owner, leave := s.proving.join(key, p, func(ctx context.Context, l *progress.Listeners) (struct{}, error) {
			return struct{}{}, fetchProof(ctx, s, w, src, l)
		}, nil)
		_, err := fl.wait(ctx)
		s.proving.forget(fl)
		leave()
		if err == nil {
			break
		}
		if owner || ctx.Err() != nil || everybodys(err, src) {
			return fmt.Errorf("prove that %s has it: %w", originOf(s, src, w.desc.Digest).name, err)
		}
		// Another's fetch failed for a reason of its own: try with this caller's.
	}
	return checkSize(s.catalog.Snapshot(), id, w)
}

// checkSize compares the size that a manifest has for a blob with the size when it was fetched, if the layer's record
// has that. It is called after a proof: a caller that has not proven to have the blob must not learn its size.
func checkSize(i *catalog.Index, id string, w layerRequest) error {
	if l := i.Layer(id); l.Blob == w.desc.Digest && l.BlobSize != w.desc.Size {
		return fail.New(errdefs.ErrDataLoss, "blob %s has %d bytes, not the %d promised", l.Blob, l.BlobSize, w.desc.Size)
	}
	return nil
}

// fetchProof fetches a blob and digests it, unless the origin has proven it meanwhile. It reports progress to l.
func fetchProof(ctx context.Context, s *pipeline, w layerRequest, src source, l *progress.Listeners) error {
	if possesses(s, originOf(s, src, w.desc.Digest), w) {
		return nil
	}
	ctx, paced, done, err := takeTurn(ctx, s, w, src, l)
	if err != nil {
		return err
	}
	defer done()
	for {
		err := readWhole(ctx, w, paced, l.Of(w.desc, progress.Proving))
		if err == nil {
			noteProof(s, src, w.desc.Digest)
			return nil
		}
		if !errors.Is(err, errMismatch) {
			return &fetchError{place(src), err}
		}
	}
}

// readWhole reads a blob to its end and verifies it.
func readWhole(ctx context.Context, w layerRequest, src source, tell progress.Tell) error {
	rc, err := src.open(ctx, w.desc)
	if err != nil {
		return err
	}
	defer rc.Close()
	blob := newBlobReader(rc, w.desc, func(done int64) { tell(done, senderOf(rc)) })
	if err = blob.prove(); err == nil || !blob.mismatch {
		return err
	}
	again, err := reportMismatch(rc, err)
	if again {
		return fmt.Errorf("%w: %w", errMismatch, err)
	}
	return err
}
