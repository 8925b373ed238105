package image

import (
	"cmp"
	"context"
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/document"
	"berth/internal/image/progress"
	"berth/internal/limit"
)

// chosen is one image for one platform. All of it has been verified but its layers.
type chosen struct {
	doc  document.Image
	have *catalog.ImageRecord // if the store has the whole image; of the other fields only done is set then
	done func()               // drops what others may share, once the image is recorded or given up; may be nil
}

// chooser finds the image for a platform, starting from the descriptor that a reference resolves to.
type chooser struct {
	store    *pipeline
	src      source
	platform target
	explicit bool  // the caller asked for the platform, so a manifest without an index must match it too
	visited  int   // counts manifests and indexes, for limit.IndexManifests
	taken    int64 // bytes of all documents, for limit.Documents
	leave    []func()
}

// The bounds for indexes in an index, and for entries that have no platform.
const (
	maxIndexDepth = 4
	maxUnnamed    = 16 // entries without a platform that are read in one index
)

func (c *chooser) choose(ctx context.Context, desc ocispec.Descriptor) (*chosen, error) {
	c.visited = 0
	found, err := c.visit(ctx, desc, 0)
	if err == nil && c.explicit && found.doc.Artifact == nil && !c.platform.Match(platformOf(found.doc.Config)) {
		err = fail.New(errdefs.ErrNotFound, "the image is for %s, not for %s", platforms.Format(platformOf(found.doc.Config)),
			c.platform.name)
	}
	if err != nil {
		c.leaveAll()
		return nil, err
	}
	found.done = c.leaveAll
	return found, nil
}

func (c *chooser) leaveAll() {
	for _, leave := range c.leave {
		leave()
	}
	c.leave = nil
}

func (c *chooser) visit(ctx context.Context, desc ocispec.Descriptor, depth int) (*chosen, error) {
	c.visited++
	if err := limit.IndexManifests.Check(int64(c.visited)); err != nil {
		return nil, err
	}
	raw, err := c.read(ctx, desc, limit.ManifestBytes.At(c.store.settings().MaxManifestBytes), "manifest")
	if err != nil {
		return nil, err
	}
	if err := c.take(raw); err != nil {
		return nil, err
	}
	kind, err := document.MediaType(desc, raw)
	if err != nil {
		return nil, err
	}
	if images.IsManifestType(kind) {
		return c.image(ctx, desc, raw)
	}
	if depth >= maxIndexDepth {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "indexes are nested more than %d deep", maxIndexDepth)
	}
	return c.index(ctx, desc, raw, depth)
}

// take counts a document that is going to be parsed, whether it was read or was there.
func (c *chooser) take(raw []byte) error {
	c.taken += int64(len(raw))
	return c.store.settings().documents().Check(c.taken)
}

// index returns the best match. If no entry matches, it reads those without a platform, in order. It looks at entries
// that say that they are artifacts only if the index has no others: they lie beside images as well, as signatures do.
func (c *chooser) index(ctx context.Context, desc ocispec.Descriptor, raw []byte, depth int) (*chosen, error) {
	var idx ocispec.Index
	if err := json.Unmarshal(raw, &idx); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "index %s: %w", desc.Digest, err)
	}
	var best *ocispec.Descriptor
	var unnamed []ocispec.Descriptor
	var offered []string
	eligible, imageless := document.MayBeImage, false
	if !slices.ContainsFunc(idx.Manifests, eligible) {
		eligible, imageless = document.MayBeArtifact, true
	}
	for i, m := range idx.Manifests {
		if !eligible(m) {
			continue
		}
		if m.Platform == nil || m.Platform.OS == "" && m.Platform.Architecture == "" {
			unnamed = append(unnamed, m)
			continue
		}
		offered = append(offered, platforms.Format(*m.Platform))
		if c.platform.Match(*m.Platform) && (best == nil || c.platform.Less(*m.Platform, *best.Platform)) {
			best = &idx.Manifests[i]
		}
	}
	if best != nil {
		return c.visit(ctx, *best, depth+1)
	}
	return c.among(ctx, unnamed, candidates{imageless, offered}, depth)
}

// candidates says what an index offers with a platform.
type candidates struct {
	imageless bool // all entries are artifacts
	platforms []string
}

// among reads the entries of an index that have no platform. An artifact among them is for all platforms, but is taken
// only if the index has no images, not even for other platforms, or such as cannot be had. If the index offers nothing
// else, it returns the error of the first entry, which says more than that none matches.
func (c *chooser) among(
	ctx context.Context, unnamed []ocispec.Descriptor, offered candidates, depth int,
) (*chosen, error) {
	var first error
	var artifact *chosen
	for _, m := range unnamed[:min(len(unnamed), maxUnnamed)] {
		found, err := c.visit(ctx, m, depth+1)
		if err == nil && found.doc.Artifact != nil {
			artifact = cmp.Or(artifact, found)
			continue
		}
		if err == nil {
			if c.platform.Match(platformOf(found.doc.Config)) {
				return found, nil
			}
			offered.platforms = append(offered.platforms, platforms.Format(platformOf(found.doc.Config)))
			continue
		}
		if k := kindOf(err); k != errdefs.ErrFailedPrecondition && k != errdefs.ErrNotFound {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	if artifact != nil && (offered.imageless || first == nil && len(offered.platforms) == 0) {
		return artifact, nil
	}
	if len(offered.platforms) == 0 && first != nil {
		return nil, first
	}
	return nil, fail.New(errdefs.ErrNotFound, "the index has no image for the platform %s; it has %s", c.platform.name,
		offer(offered.platforms))
}

func (c *chooser) image(ctx context.Context, desc ocispec.Descriptor, raw []byte) (*chosen, error) {
	found := &chosen{doc: document.Image{Descriptor: desc}}
	if err := json.Unmarshal(raw, &found.doc.Manifest); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if err := document.CheckManifest(&found.doc.Manifest, c.store.settings().documentLimits()); err != nil {
		return nil, err
	}
	if document.IsArtifact(&found.doc.Manifest) {
		return c.artifact(ctx, found, raw)
	}
	var err error
	if found.doc.RawConfig, err = c.readConfig(ctx, found.doc.Manifest.Config); err != nil {
		return nil, err
	}
	if err := c.take(found.doc.RawConfig); err != nil {
		return nil, err
	}
	if found.doc.Config, err = document.ParseConfig(found.doc.RawConfig); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "image config %s: %w", found.doc.Manifest.Config.Digest, err)
	}
	if err := document.CheckConfig(found.doc.Config); err != nil {
		return nil, err
	}
	return found, found.doc.Agree()
}

// artifact reads what an artifact has beside its layers.
func (c *chooser) artifact(ctx context.Context, found *chosen, raw []byte) (*chosen, error) {
	m := &found.doc.Manifest
	parts, err := document.PartsOf(m)
	if err == nil {
		err = document.NoConfig(raw)
	}
	if err != nil {
		return nil, err
	}
	config := ocispec.DescriptorEmptyJSON.Data
	if m.Config.Digest != ocispec.DescriptorEmptyJSON.Digest || m.Config.Size != ocispec.DescriptorEmptyJSON.Size {
		if config, err = c.readConfig(ctx, m.Config); err != nil {
			return nil, err
		}
	}
	found.doc.RawConfig = raw
	found.doc.Artifact = &document.Artifact{Type: document.TypeOf(m), RawConfig: config, Parts: parts}
	return found, nil
}

// readConfig fetches a config, once for all callers that need it from the same origin. It takes the config from an
// image of the store instead if the origin has proven that image. Until leaveAll is called, others share the result.
func (c *chooser) readConfig(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if err := document.CheckDescriptor(desc); err != nil {
		return nil, err
	}
	from := originOf(c.store, c.src, desc.Digest)
	key := desc.Digest.String() + " " + from.name
	for {
		fl, owner, leave := c.store.configs.join(key, nil, func(ctx context.Context, _ *progress.Listeners) ([]byte, error) {
			if raw := knownConfig(c.store, desc.Digest, from); raw != nil {
				return raw, nil
			}
			raw, err := c.read(ctx, desc, limit.ConfigBytes.At(c.store.settings().MaxConfigBytes), "image config")
			if err != nil {
				err = &fetchError{place(c.src), err}
			}
			return raw, err
		}, nil)
		raw, err := fl.wait(ctx)
		if err == nil {
			c.leave = append(c.leave, leave)
			return raw, document.Prove(raw, desc, "image config")
		}
		c.store.configs.forget(fl)
		leave()
		if owner || ctx.Err() != nil || everybodys(err, c.src) {
			return nil, err
		}
		// Another's fetch failed for a reason of its own: try with this caller's.
	}
}

// read fetches a small blob and verifies its size and digest.
func (c *chooser) read(ctx context.Context, desc ocispec.Descriptor, most limit.Budget, what string) ([]byte, error) {
	if err := document.CheckDescriptor(desc); err != nil {
		return nil, err
	}
	if err := most.Check(desc.Size); err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, desc.Digest, err)
	}
	for {
		raw, mismatch, err := c.readOnce(ctx, desc, what)
		if err == nil || !mismatch {
			return raw, err
		}
	}
}

// readOnce reads from one host. mismatch is true if that host has served other content and another can be asked.
func (c *chooser) readOnce(
	ctx context.Context, desc ocispec.Descriptor, what string,
) (raw []byte, mismatch bool, err error) {
	rc, err := c.src.open(ctx, desc)
	if err != nil {
		return nil, false, err
	}
	defer rc.Close()
	raw, err = io.ReadAll(io.LimitReader(rc, desc.Size+1))
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	if err := document.Prove(raw, desc, what); err != nil {
		mismatch, err = reportMismatch(rc, err)
		return nil, mismatch, err
	}
	return raw, false, nil
}
