package image

import (
	"cmp"
	"context"
	_ "crypto/sha512" // digests may use it
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// chosen is one image for one platform, proven but for its layers.
type chosen struct {
	manifest   ocispec.Manifest
	descriptor ocispec.Descriptor // of the manifest
	rawConfig  []byte
	config     ocispec.Image
	have       *imageRecord // the store has all of it: nothing else here is set but done
	done       func()       // lets go of what others may share until the image is recorded, or given up; may be nil
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
	if err == nil && c.explicit && !c.platform.Match(platformOf(found.config)) {
		err = fail.New(errdefs.ErrNotFound, "the image is for %s, not for %s", platforms.Format(platformOf(found.config)),
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
	kind, err := manifestType(desc, raw)
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
		if !mayBeImage(m) {
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

// among looks into the entries of an index that do not say their platform. Where there is nothing else, why the first of them
// will not do tells more than that none does.
func (c *chooser) among(ctx context.Context, unnamed []ocispec.Descriptor, offered []string, depth int) (*chosen, error) {
	var first error
	for _, m := range unnamed[:min(len(unnamed), maxUnnamed)] {
		found, err := c.visit(ctx, m, depth+1)
		if err == nil {
			if c.platform.Match(platformOf(found.config)) {
				return found, nil
			}
			offered = append(offered, platforms.Format(platformOf(found.config)))
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

// mayBeImage says whether an entry of an index could lead to an image. Others are signatures, attestations, charts and the
// like, which lie beside images and may even name a platform.
func mayBeImage(m ocispec.Descriptor) bool {
	switch {
	case !images.IsManifestType(m.MediaType) && !images.IsIndexType(m.MediaType):
		return false
	case m.ArtifactType != "" && !images.IsConfigType(m.ArtifactType):
		return false
	case m.Annotations["vnd.docker.reference.type"] != "": // how BuildKit marks attestations
		return false
	}
	return m.Platform == nil || m.Platform.OS != "unknown" || m.Platform.Architecture != "unknown"
}

func (c *chooser) image(ctx context.Context, desc ocispec.Descriptor, raw []byte) (*chosen, error) {
	found := &chosen{descriptor: desc}
	if err := json.Unmarshal(raw, &found.manifest); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if err := c.checkManifest(&found.manifest); err != nil {
		return nil, err
	}
	var err error
	if found.rawConfig, err = c.readConfig(ctx, found.manifest.Config); err != nil {
		return nil, err
	}
	if found.config, err = parseConfig(found.rawConfig); err != nil {
		return nil, fail.New(errdefs.ErrDataLoss, "image config %s: %w", found.manifest.Config.Digest, err)
	}
	if err := checkConfig(found.config); err != nil {
		return nil, err
	}
	return found, found.agree()
}

func (c *chooser) checkManifest(m *ocispec.Manifest) error {
	if !images.IsConfigType(m.Config.MediaType) {
		return fail.New(errdefs.ErrFailedPrecondition, "it is an artifact of type %q, not a container image",
			cmp.Or(m.ArtifactType, m.Config.MediaType))
	}
	if err := limit.ImageLayers.At(int64(c.store.settings().MaxLayers)).Check(int64(len(m.Layers))); err != nil {
		return err
	}
	var total int64
	for _, l := range m.Layers {
		if !images.IsLayerType(l.MediaType) {
			return fail.New(errdefs.ErrFailedPrecondition, "it is an artifact, not a container image: layer %s is of type %q",
				l.Digest, l.MediaType)
		}
		if strings.Contains(l.MediaType, "encrypted") || strings.Contains(l.MediaType, "erofs") {
			return fail.New(errdefs.ErrFailedPrecondition, "layer %s is of type %q, which cannot be unpacked here", l.Digest,
				l.MediaType)
		}
		if err := checkDescriptor(l); err != nil {
			return err
		}
		if total += l.Size; total < 0 {
			return fail.New(errdefs.ErrDataLoss, "the sizes of its layers add up to more than any disk")
		}
	}
	return limit.ImageBytes.At(c.store.settings().MaxImageBytes).Check(total)
}

// agree says whether manifest and config describe the same layers.
func (f *chosen) agree() error {
	rootfs := f.config.RootFS
	if len(rootfs.DiffIDs) != len(f.manifest.Layers) {
		return fail.New(errdefs.ErrDataLoss, "the manifest has %d layers and the config %d diff ids", len(f.manifest.Layers),
			len(rootfs.DiffIDs))
	}
	for _, d := range rootfs.DiffIDs {
		if err := d.Validate(); err != nil {
			return fail.New(errdefs.ErrDataLoss, "diff id %q: %w", d, err)
		}
	}
	return nil
}

// readConfig fetches a config once for all who want it from the same origin, and not at all when an image of the store has
// it and the origin has proven that one. Until leaveAll others get it from here.
func (c *chooser) readConfig(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if err := checkDescriptor(desc); err != nil {
		return nil, err
	}
	from := originOf(c.store, c.src, desc.Digest)
	key := desc.Digest.String() + " " + from.name
	for {
		fl, owner, leave := c.store.configs.join(key, nil, func(ctx context.Context, _ *listeners) ([]byte, error) {
			if raw := knownConfig(c.store, desc.Digest, from); raw != nil {
				return raw, nil
			}
			return c.read(ctx, desc, limit.ConfigBytes.At(c.store.settings().MaxConfigBytes), "image config")
		}, nil)
		raw, err := fl.wait(ctx)
		if err == nil {
			c.leave = append(c.leave, leave)
			return raw, proveSmall(raw, desc, "image config")
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
	if err := checkDescriptor(desc); err != nil {
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
func (c *chooser) readOnce(ctx context.Context, desc ocispec.Descriptor, what string) (raw []byte, mismatch bool, err error) {
	rc, err := c.src.open(ctx, desc)
	if err != nil {
		return nil, false, err
	}
	defer rc.Close()
	raw, err = io.ReadAll(io.LimitReader(rc, desc.Size+1))
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	if err := proveSmall(raw, desc, what); err != nil {
		mismatch, err = reportMismatch(rc, err)
		return nil, mismatch, err
	}
	return raw, false, nil
}

func proveSmall(raw []byte, desc ocispec.Descriptor, what string) error {
	if int64(len(raw)) != desc.Size {
		more := ""
		if int64(len(raw)) > desc.Size {
			more = "or more "
		}
		return fail.New(errdefs.ErrDataLoss, "%s %s has %d %sbytes, not the %d promised", what, desc.Digest, len(raw), more,
			desc.Size)
	}
	if got := desc.Digest.Algorithm().FromBytes(raw); got != desc.Digest {
		return fail.New(errdefs.ErrDataLoss, "%s has the digest %s, not the %s promised", what, got, desc.Digest)
	}
	return nil
}

func checkDescriptor(desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return fail.New(errdefs.ErrDataLoss, "digest %q: %w", desc.Digest, err)
	}
	if desc.Size < 0 {
		return fail.New(errdefs.ErrDataLoss, "%s has the size %d", desc.Digest, desc.Size)
	}
	return nil
}

// manifestType decides between manifest and index by what it is, and refuses what could be read as either.
func manifestType(desc ocispec.Descriptor, raw []byte) (string, error) {
	var doc struct {
		MediaType     string          `json:"mediaType"`
		SchemaVersion int             `json:"schemaVersion"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		Manifests     json.RawMessage `json:"manifests"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if err := unambiguousOf(raw, limit.DocumentValues); err != nil {
		if kindOf(err) == errdefs.ErrResourceExhausted {
			return "", fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s: %w", desc.Digest, err)
	}
	if !utf8.Valid(raw) {
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s is not UTF-8", desc.Digest)
	}
	isImage, isIndex := doc.Config != nil || doc.Layers != nil, doc.Manifests != nil
	switch {
	case doc.FSLayers != nil || doc.SchemaVersion == 1:
		return "", fail.New(errdefs.ErrFailedPrecondition,
			"it is in Docker's schema 1, which is no longer supported: push it again with a current tool")
	case isImage && (isIndex || images.IsIndexType(doc.MediaType)), isIndex && images.IsManifestType(doc.MediaType):
		return "", fail.New(errdefs.ErrDataLoss, "manifest %s is both an image and an index", desc.Digest)
	case isIndex:
		return ocispec.MediaTypeImageIndex, nil
	case isImage:
		return ocispec.MediaTypeImageManifest, nil
	}
	return "", fail.New(errdefs.ErrFailedPrecondition, "%s of type %q is neither an image nor an index", desc.Digest,
		desc.MediaType)
}

// chainIDs names each layer together with all below it.
func chainIDs(diffIDs []digest.Digest) []digest.Digest {
	out := make([]digest.Digest, len(diffIDs))
	for i, d := range diffIDs {
		if out[i] = d; i > 0 {
			out[i] = digest.FromString(out[i-1].String() + " " + d.String())
		}
	}
	return out
}
