package image

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// PullRequest describes what to pull, and for whom.
type PullRequest struct {
	Reference string
	Auth      *Auth
	Namespace string               // of the pod that needs it, for verifiers; may be empty
	Pod       string               // its name, for those who ask what is pulled; may be empty
	Platform  string               // the store's if empty
	Progress  func(progress.Event) // called from one goroutine at a time; must not block for long
}

// Pull fetches the image that the reference names now. It may be repeated and called concurrently: it fetches only what
// is missing, and waits for layers that other calls are fetching. When ctx ends it returns, and a layer for which no
// other call waits is dropped.
func (s *Store) Pull(ctx context.Context, req PullRequest) (img Image, err error) {
	began := time.Now()
	defer func() { s.pipeline.pullSeen(time.Since(began), err) }()
	op := "pull image " + req.Reference
	ref, err := reference.Parse(req.Reference)
	if err != nil {
		return Image{}, failed(op, err)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	entry := s.pulls.Enter(progress.About{
		Reference: ref.String(), Namespace: req.Namespace, Pod: req.Pod, Began: time.Now(),
	})
	defer entry.Leave()
	p := entry.Reporter(req.Progress)
	defer p.Close()
	img, err = s.pull(ctx, ref, req, p)
	s.settle(err)
	return img, failed(op, s.disk.Explain(err))
}

// Pulls tells of the pulls that are under way, whoever has asked for them. It waits for none of them.
func Pulls(s *Store) []progress.Pull { return s.pulls.List(time.Now()) }

// bound returns a context that ends with the caller's and when the store is closed.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func (s *Store) pull(
	ctx context.Context, ref reference.Reference, req PullRequest, p *progress.Reporter,
) (Image, error) {
	p.Report(progress.Event{Phase: progress.Resolving})
	reg, err := s.pipeline.connect(ctx, ref, req.Auth)
	if err != nil {
		return Image{}, err
	}
	defer reg.Close()
	c, err := s.pipeline.chooser(reg, req.Platform)
	if err != nil {
		return Image{}, err
	}
	desc, found, err := s.pipeline.find(ctx, ref, reg, c, req.Namespace)
	if err != nil {
		return Image{}, err
	}
	names := names{
		digests: []string{ref.At(desc.Digest)}, choices: []string{c.choice(desc.Digest)}, resolved: plainly(desc),
	}
	if ref.Digest() == "" {
		names.tags = []string{ref.String()}
	}
	if found.have != nil {
		if img, same, err := renew(ctx, s.pipeline, found, names, p); same || err != nil {
			return img, err
		}
		if found, err = c.choose(ctx, desc); err != nil {
			return Image{}, err
		}
	}
	return s.pipeline.admit(ctx, found, names, reg, p)
}

func (s *pipeline) chooser(src source, platform string) (*chooser, error) {
	c := &chooser{store: s, src: src, platform: s.platform}
	if platform == "" {
		return c, nil
	}
	var err error
	c.platform, err = targetFor(platform)
	c.explicit = true
	return c, err
}

// names are the names that an image gets.
type names struct {
	tags, digests []string
	choices       []string             // see imageRecord
	resolved      []ocispec.Descriptor // of the digests, if a registry has resolved them
}

// admit fetches the layers of a chosen image and records the image.
func (s *pipeline) admit(ctx context.Context, found *chosen, n names, src source, p *progress.Reporter) (Image, error) {
	if found.done != nil {
		defer found.done()
	}
	if have := provenImage(s, found, src); have != nil {
		if img, same, err := renew(ctx, s, have, n, p); same || err != nil {
			return img, err
		}
	}
	requests := requestsOf(found)
	ids, release, err := stack(ctx, s, requests, src, p)
	defer release()
	if err != nil {
		return Image{}, err
	}
	unlock, err := s.records.lock(ctx, found.doc.ID().String())
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	rec := s.newRecord(found, requests, ids, n)
	done, err := unite(ctx, s, rec, requests, src, p)
	defer done()
	if err != nil {
		return Image{}, err
	}
	return catalog.Commit(s.catalog, rec)
}

func requestsOf(found *chosen) []layerRequest {
	use := new(imageUse)
	if a := found.doc.Artifact; a != nil {
		out := make([]layerRequest, len(a.Parts))
		for i, part := range a.Parts {
			out[i] = layerRequest{desc: found.doc.Manifest.Layers[i], part: part, below: out[:i], use: use}
		}
		return out
	}
	diffs := found.doc.Config.RootFS.DiffIDs
	chains := document.ChainIDs(diffs)
	out := make([]layerRequest, len(diffs))
	for i := range out {
		out[i] = layerRequest{
			desc: found.doc.Manifest.Layers[i], diffID: diffs[i], chain: chains[i], below: out[:i], use: use,
		}
	}
	return out
}

// stack obtains all layers and finalizes, in layer order, those that depend on the ones below. They are held until the
// caller calls release, which it does after an error too.
func stack(
	ctx context.Context, s *pipeline, requests []layerRequest, src source, p *progress.Reporter,
) (ids []string, release func(), err error) {
	held, err := s.obtainAll(ctx, requests, src, p)
	release = func() {
		for _, h := range held {
			if h != nil {
				h.release()
			}
		}
	}
	if err == nil {
		ids, err = s.finalizeAll(ctx, requests, held, src, p)
	}
	if fail.As[*hungError](err) { // so does the disk, on which layers that came to nothing are removed
		drop := release
		release = func() { go drop() }
	}
	return ids, release, err
}

// obtainAll obtains all layers in parallel. After an error the result has those that it obtained.
func (s *pipeline) obtainAll(
	ctx context.Context, requests []layerRequest, src source, p *progress.Reporter,
) ([]*layerLease, error) {
	held := make([]*layerLease, len(requests))
	for _, w := range requests {
		p.Report(progress.Event{Layer: w.desc.Digest, Total: w.desc.Size, Phase: progress.Waiting})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.settings().MaxPullLayers)
	for i, w := range requests {
		g.Go(func() (err error) {
			held[i], err = s.obtain(gctx, w, src, p)
			return err
		})
	}
	return held, g.Wait()
}

// finalizeAll finalizes, in layer order, the layers that depend on those below, and returns all ids.
func (s *pipeline) finalizeAll(
	ctx context.Context, requests []layerRequest, held []*layerLease, src source, p *progress.Reporter,
) ([]string, error) {
	ids := make([]string, 0, len(held))
	for i, w := range requests {
		w.lowers = slices.Clone(ids)
		for !held[i].fits(ids) {
			err := errTaken // of a layer that has an id already, but was finalized over others
			if held[i].id == "" {
				p.Report(progress.Event{Layer: w.desc.Digest, Done: w.desc.Size, Total: w.desc.Size, Phase: progress.Finalizing})
				err = s.finalize(ctx, w, held[i])
			}
			if err == nil {
				break
			}
			switch {
			case !w.alone && fail.As[*sharedError](err):
				w.alone = true
			case !errors.Is(err, errTaken):
				return nil, err
			}
			held[i].release()
			if held[i], err = s.obtain(ctx, w, src, p); err != nil {
				return nil, err
			}
		}
		ids = append(ids, held[i].id)
		p.Report(progress.Event{Layer: w.desc.Digest, Done: w.desc.Size, Total: w.desc.Size, Phase: progress.Done})
	}
	return ids, nil
}

func (s *pipeline) newRecord(found *chosen, requests []layerRequest, ids []string, n names) *catalog.ImageRecord {
	rec := &catalog.ImageRecord{
		ID: found.doc.ID().String(), Tags: n.tags, Digests: n.digests,
		Choices:  n.choicesBeside(found.doc.Descriptor.Digest.String()),
		Resolved: n.resolved,
		Manifest: found.doc.Descriptor.Digest.String(),
		Size:     uint64(len(found.doc.RawConfig)), Config: found.doc.RawConfig, PulledAt: time.Now().UTC(),
		Boot:   s.bootID,
		Parsed: found.doc.Config,
	}
	if a := found.doc.Artifact; a != nil {
		rec.Manifest = rec.ID // whatever the algorithm of the digest that it was served by
		rec.Artifact, rec.ArtifactConfig = a.Type, a.RawConfig
	} else {
		rec.Platform = platforms.Format(platformOf(found.doc.Config))
	}
	now := s.catalog.Snapshot()
	for i, w := range requests {
		rec.Size += uint64(w.desc.Size)
		w = w.as(now.Layer(ids[i]))
		ref := catalog.LayerRef{ID: ids[i], DiffID: w.diffID, Blob: w.desc.Digest, Size: w.desc.Size}
		rec.Layers = append(rec.Layers, ref)
	}
	return rec
}
