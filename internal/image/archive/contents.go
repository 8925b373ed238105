package archive

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/document"
	"berth/internal/image/reference"
	"berth/internal/limit"
)

// Names are what an archive calls an image.
type Names struct{ Tags, Digests []string }

// IsLayout reports whether the archive is an OCI image layout.
func (a *Archive) IsLayout() bool {
	_, ok := a.file("index.json")
	return ok
}

// IsSaved reports whether the archive has the list of images that docker writes.
func (a *Archive) IsSaved() bool {
	_, ok := a.file("manifest.json")
	return ok
}

// Layout is what an OCI image layout lists.
type Layout struct {
	Manifests []ocispec.Descriptor // of manifests and indexes
	tags      map[string][]string  // in a manifest.json beside the index, by the hex of the config
}

// Layout reads the index of an OCI image layout.
func (a *Archive) Layout() (Layout, error) {
	var idx ocispec.Index
	if err := a.readFile("index.json", &idx); err != nil {
		return Layout{}, err
	}
	if err := limit.ArchiveImages.Check(int64(len(idx.Manifests))); err != nil {
		return Layout{}, err
	}
	tags, err := a.savedTags()
	return Layout{idx.Manifests, tags}, err
}

// Names are what the layout calls the image that one of its manifests led to, which has this config.
func (l Layout) Names(desc ocispec.Descriptor, config digest.Digest) Names {
	return namesOf(desc, l.tags[config.Encoded()])
}

// namesOf is what annotations, or docker's own list, call an image. An image that is called by a tag gets no name by
// its digest: an archive can be packed anew, and then no registry knows a manifest of that digest in this repository.
func namesOf(desc ocispec.Descriptor, more []string) (n Names) {
	annotated := []string{desc.Annotations["io.containerd.image.name"], desc.Annotations[ocispec.AnnotationRefName]}
	for _, s := range append(annotated, more...) {
		if !strings.ContainsAny(s, "/:") {
			continue // a bare tag names no image
		}
		ref, err := reference.Parse(s)
		if err != nil {
			continue
		}
		if ref.Digest() == "" {
			n.Tags = reference.Union(n.Tags, []string{ref.String()})
			continue
		}
		n.Digests = reference.Union(n.Digests, []string{ref.At(desc.Digest)})
	}
	return n
}

// saveEntry is one image in docker's manifest.json.
type saveEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// savedTags are the tags in a manifest.json beside an index.json, by the hex of the config. One that cannot be read has
// none.
func (a *Archive) savedTags() (map[string][]string, error) {
	if _, ok := a.file("manifest.json"); !ok {
		return nil, nil
	}
	entries, err := a.saveEntries()
	if fail.Is(err, errdefs.ErrResourceExhausted) {
		return nil, err
	}
	out := map[string][]string{}
	for _, e := range entries {
		hex := strings.TrimSuffix(path.Base(e.Config), ".json")
		out[hex] = append(out[hex], e.RepoTags...)
	}
	return out, nil
}

// saveEntries reads docker's manifest.json.
func (a *Archive) saveEntries() ([]saveEntry, error) {
	var entries []saveEntry
	if err := a.readFile("manifest.json", &entries); err != nil {
		return nil, err
	}
	names := len(entries)
	for _, e := range entries {
		names += len(e.RepoTags)
	}
	return entries, limit.ArchiveImages.Check(int64(names))
}

// SavedImage is an image that the archive lists in docker's own form.
type SavedImage struct {
	Tags    []string
	entry   saveEntry
	counted *bool // its config was read before
}

// SavedLimits bound the images in docker's own form.
type SavedLimits struct {
	Config   limit.Budget
	Manifest document.Limits
}

// Saved reads the list that `docker save` wrote before it wrote layouts.
func (a *Archive) Saved() ([]SavedImage, error) {
	entries, err := a.saveEntries()
	if err != nil {
		return nil, err
	}
	var out []SavedImage
	for _, e := range entries {
		var tags []string
		for _, tag := range e.RepoTags {
			ref, err := reference.Parse(tag)
			if err != nil {
				return nil, err
			}
			tags = append(tags, ref.String())
		}
		out = append(out, SavedImage{tags, e, new(bool)})
	}
	return out, nil
}

// Document reads what an image consists of beside its layers. There is no manifest: one is made up, in which each layer
// goes by the digest of the file that holds it. That is computed once for a file, however many images have it.
func (a *Archive) Document(ctx context.Context, limits SavedLimits, image SavedImage) (*document.Image, error) {
	e := image.entry
	raw, err := a.readRaw(e.Config, !*image.counted)
	if err != nil {
		return nil, err
	}
	*image.counted = true
	if err := limits.Config.Check(int64(len(raw))); err != nil {
		return nil, fmt.Errorf("config %s: %w", e.Config, err)
	}
	if err := limit.ImageLayers.At(int64(limits.Manifest.Layers)).Check(int64(len(e.Layers))); err != nil {
		return nil, err
	}
	img := &document.Image{RawConfig: raw}
	img.Manifest.Config = ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(raw), Size: int64(len(raw)),
	}
	if img.Config, err = document.ParseConfig(raw); err != nil {
		return nil, fail.New(errdefs.ErrInvalidArgument, "%s: %w", e.Config, err)
	}
	if err := document.CheckConfig(img.Config); err != nil {
		return nil, err
	}
	for _, name := range e.Layers {
		desc, err := a.describe(ctx, name)
		if err != nil {
			return nil, err
		}
		img.Manifest.Layers = append(img.Manifest.Layers, desc)
	}
	if err := document.CheckManifest(&img.Manifest, limits.Manifest); err != nil {
		return nil, err
	}
	return img, img.Agree()
}

func (a *Archive) describe(ctx context.Context, name string) (ocispec.Descriptor, error) {
	f, ok := a.file(name)
	if !ok {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrInvalidArgument, "it has no layer %s", name)
	}
	d, known := a.digests[f.path]
	if !known {
		in, err := os.Open(f.path)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		defer in.Close()
		if d, err = digest.FromReader(ctxReader{ctx, in}); err != nil {
			return ocispec.Descriptor{}, err
		}
		a.digests[f.path], a.blobs[d] = d, name
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: f.size}, nil
}
