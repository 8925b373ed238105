package image

import (
	"context"
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"io"

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

// chosen is one image for one platform, proven but for its layers.
type chosen struct {
	doc  document.Image
	have *catalog.ImageRecord // the store has all of it: nothing else here is set but done
	done func()               // lets go of what others may share until the image is recorded, or given up; may be nil
}

// chooser walks from what a reference names to the image for a platform.
type chooser struct {
	store    *pipeline
	src      source
	platform target
	explicit bool // the caller asked for the platform: a lone manifest must match too
	visited  int  // manifests and indexes, against limit.IndexManifests
	leave    []func()
}

// An index may hold indexes, and entries that do not say what they are.
const (
	maxIndexDepth = 4
	maxUnnamed    = 16 // of those, looked into in one index
)

func (c *chooser) choose(ctx context.Context, desc ocispec.Descriptor) (*chosen, error) {
	c.visited = 0
	found, err := c.visit(ctx, desc, 0)
	if err == nil && c.explicit && !c.platform.Match(platformOf(found.doc.Config)) {
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

// index picks the best match. Entries without a platform are looked into, in order, when no other matches.
func (c *chooser) index(ctx context.Context, desc ocispec.Descriptor, raw []byte, depth int) (*chosen, error) {
	var idx ocispec.Index
	if err := json.Unmarshal(raw, &idx); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "index %s: %w", desc.Digest, err)
	}
	var best *ocispec.Descriptor
	var unnamed []ocispec.Descriptor
	var offered []string
	for i, m := range idx.Manifests {
		if !document.MayBeImage(m) {
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
	return c.among(ctx, unnamed, offered, depth)
}

// among looks into the entries of an index that do not say their platform. Where there is nothing else, why the first
// of them will not do tells more than that none does.
func (c *chooser) among(
	ctx context.Context, unnamed []ocispec.Descriptor, offered []string, depth int,
) (*chosen, error) {
	var first error
	for _, m := range unnamed[:min(len(unnamed), maxUnnamed)] {
		found, err := c.visit(ctx, m, depth+1)
		if err == nil {
			if c.platform.Match(platformOf(found.doc.Config)) {
				return found, nil
			}
			offered = append(offered, platforms.Format(platformOf(found.doc.Config)))
			continue
		}
		if k := kindOf(err); k != errdefs.ErrFailedPrecondition && k != errdefs.ErrNotFound {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	if len(offered) == 0 && first != nil {
		return nil, first
	}
	return nil, fail.New(errdefs.ErrNotFound, "the index has no image for the platform %s; it has %s", c.platform.name,
		offer(offered))
}

func (c *chooser) image(ctx context.Context, desc ocispec.Descriptor, raw []byte) (*chosen, error) {
	found := &chosen{doc: document.Image{Descriptor: desc}}
	if err := json.Unmarshal(raw, &found.doc.Manifest); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if err := document.CheckManifest(&found.doc.Manifest, c.store.settings().documentLimits()); err != nil {
		return nil, err
	}
	var err error
	if found.doc.RawConfig, err = c.readConfig(ctx, found.doc.Manifest.Config); err != nil {
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

// readConfig fetches a config once for all who want it from the same origin, and not at all when an image of the store
// has it and the origin has proven that one. Until leaveAll others get it from here.
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
			return c.read(ctx, desc, limit.ConfigBytes.At(c.store.settings().MaxConfigBytes), "image config")
		}, nil)
		raw, err := fl.wait(ctx)
		if err == nil {
			c.leave = append(c.leave, leave)
			return raw, document.Prove(raw, desc, "image config")
		}
		c.store.configs.forget(fl)
		leave()
		if owner || ctx.Err() != nil {
			return nil, err
		}
	}
}

// read fetches a small blob whole and proves size and digest.
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

// readOnce reads from one host. mismatch says that it served something else, and that there is another to ask.
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
