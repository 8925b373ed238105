package image

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// choice returns the key of a manifest or index together with the platform for which an image is chosen from it. The
// choice depends on nothing else, so the record of the image keeps it.
func (c *chooser) choice(d digest.Digest) string { return c.platform.name + "@" + d.String() }

// unchanged returns the image to which desc led before, from the same repository and for the same platform, if the
// store has all its layers. It holds them until done is called. Most pulls of a tag find nothing changed, and this
// saves them the requests for index and manifest, which some registries limit.
func (c *chooser) unchanged(ref reference.Reference, desc ocispec.Descriptor) *chosen {
	name, choice := ref.At(desc.Digest), c.choice(desc.Digest)
	rec, release := c.store.catalog.HoldImage(name, func(rec *catalog.ImageRecord) bool {
		led := rec.Manifest == desc.Digest.String() || slices.Contains(rec.Choices, choice)
		fits := !c.explicit || rec.IsArtifact() || c.platform.Match(platformOf(rec.Parsed))
		return led && fits
	})
	if rec == nil {
		return nil
	}
	return &chosen{have: rec, done: release}
}

// provenImage returns the store's image for a chosen one, if the store has all of it and the source's origin has proven
// its content before, by the same blobs or by others that unpack to the same. It holds the image until done is called.
// Images of archives are always taken by their own blobs.
func provenImage(s *pipeline, found *chosen, src source) *chosen {
	id := found.doc.ID()
	from := originOf(s, src, id)
	if from.name == "" {
		return nil
	}
	rec := s.catalog.Record(id.String())
	if rec == nil || rec.IsArtifact() != (found.doc.Artifact != nil) || !from.named(rec.Tags, rec.Digests) {
		return nil
	}
	release, all := s.catalog.Leases.Hold(rec.LayerIDs()...)
	if !all {
		release()
		return nil
	}
	return &chosen{have: rec, done: release}
}

// renew records that an image of the store was pulled again, and adds the names of this pull. same is false if the
// image has changed since it was found.
func renew(
	ctx context.Context, s *pipeline, found *chosen, n names, p *progress.Reporter,
) (img Image, same bool, err error) {
	defer found.done()
	unlock, err := s.records.lock(ctx, found.have.ID)
	if err != nil {
		return Image{}, false, err
	}
	defer unlock()
	now := s.catalog.Record(found.have.ID)
	if now == nil || now != found.have && !sameImage(now, found.have) {
		return Image{}, false, nil
	}
	rec := *found.have
	rec.Tags, rec.Digests, rec.Choices, rec.Resolved = n.tags, n.digests, n.choicesBeside(rec.Manifest), n.resolved
	rec.PulledAt, rec.Boot, rec.Durable = time.Now().UTC(), s.bootID, false // commit sets Durable
	for _, phase := range []string{progress.Exists, progress.Done} {
		for _, l := range rec.Layers {
			p.Report(progress.Event{Layer: l.Blob, Done: l.Size, Total: l.Size, Phase: phase})
		}
	}
	img, err = catalog.Commit(s.catalog, &rec)
	if errors.Is(err, catalog.ErrRemoved) {
		return Image{}, false, nil
	}
	return img, true, err
}

// sameImage reports whether a record has the same layers as before, and still all names for which they were proven.
func sameImage(now, then *catalog.ImageRecord) bool {
	all := func(names, of []string) bool {
		return !slices.ContainsFunc(of, func(name string) bool { return !slices.Contains(names, name) })
	}
	return slices.Equal(now.Layers, then.Layers) && all(now.Digests, then.Digests) && all(now.Tags, then.Tags)
}

// choicesBeside returns the choices other than the manifest itself.
func (n names) choicesBeside(manifest string) []string {
	return slices.DeleteFunc(slices.Clone(n.choices), func(c string) bool { return strings.HasSuffix(c, "@"+manifest) })
}
