package image

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// choice names a manifest or index together with the platform for which an image was chosen from it. What is chosen
// depends on nothing else, so a record can keep it.
func (c *chooser) choice(d digest.Digest) string { return c.platform.name + "@" + d.String() }

// unchanged finds the image to which desc led before, from the same repository and for the same platform, when the
// store has all its layers. They are held until done is called. Most pulls of a tag find that nothing has changed, and
// neither manifest nor index need be read for that; some registries count how often they are.
func (c *chooser) unchanged(ref reference.Reference, desc ocispec.Descriptor) *chosen {
	name, choice := ref.At(desc.Digest), c.choice(desc.Digest)
	rec, release := c.store.catalog.HoldImage(name, func(rec *catalog.ImageRecord) bool {
		led := rec.Manifest == desc.Digest.String() || slices.Contains(rec.Choices, choice)
		fits := !c.explicit || c.platform.Match(platformOf(rec.Parsed))
		return led && fits
	})
	if rec == nil {
		return nil
	}
	return &chosen{have: rec, done: release}
}

// provenImage finds the image that was chosen where the store has all of it, and its content was proven for the
// source's origin before, by these blobs or by others that unpack to the same. It is held until done is called. An
// archive is taken by its own blobs.
func provenImage(s *pipeline, found *chosen, src source) *chosen {
	id := digest.FromBytes(found.doc.RawConfig)
	from := originOf(s, src, id)
	if from.name == "" {
		return nil
	}
	rec := s.catalog.Record(id.String())
	if rec == nil || !from.named(rec.Tags, rec.Digests) {
		return nil
	}
	release, all := s.catalog.Leases.Hold(rec.LayerIDs()...)
	if !all {
		release()
		return nil
	}
	return &chosen{have: rec, done: release}
}

// renew records that an image that the store has was pulled again, under the names of this pull. same is false when the
// image is not what it was when it was found.
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
	rec.PulledAt, rec.Boot, rec.Durable = time.Now().UTC(), s.cfg.BootID, false // commit knows whether it is durable
	for _, phase := range []string{progress.Exists, progress.Done} {
		for _, l := range rec.Layers {
			p.Report(progress.Event{Layer: l.Blob, Done: l.Size, Total: l.Size, Phase: phase})
		}
	}
	img, err = catalog.Commit(s.catalog, &rec)
	return img, true, err
}

// sameImage reports whether a record has the layers that it had, and all the names for which they were proven.
func sameImage(now, then *catalog.ImageRecord) bool {
	all := func(names, of []string) bool {
		return !slices.ContainsFunc(of, func(name string) bool { return !slices.Contains(names, name) })
	}
	return slices.Equal(now.Layers, then.Layers) && all(now.Digests, then.Digests) && all(now.Tags, then.Tags)
}

// choicesBeside are the choices that the digest of a manifest does not tell already.
func (n names) choicesBeside(manifest string) []string {
	return slices.DeleteFunc(slices.Clone(n.choices), func(c string) bool { return strings.HasSuffix(c, "@"+manifest) })
}
