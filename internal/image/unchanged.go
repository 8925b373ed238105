package image

import (
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// choice names a manifest or index together with the platform for which an image was chosen from it. What is chosen
// depends on nothing else, so a record can keep it.
func (c *chooser) choice(d digest.Digest) string { return c.platform.name + "@" + d.String() }

// unchanged finds the image to which desc led before, from the same repository and for the same platform, when the
// store has all its layers. They are held until done is called. Most pulls of a tag find that nothing has changed, and
// neither manifest nor index need be read for that; some registries count how often they are.
func (c *chooser) unchanged(ref Reference, desc ocispec.Descriptor) *chosen {
	name, choice := ref.at(desc.Digest), c.choice(desc.Digest)
	rec, release := holdImage(c.store.catalog, func(rec *imageRecord) bool {
		led := rec.Manifest == desc.Digest.String() || slices.Contains(rec.Choices, choice)
		fits := !c.explicit || c.platform.Match(platformOf(rec.parsedImage))
		return led && fits && slices.Contains(rec.Digests, name)
	})
	if rec == nil {
		return nil
	}
	return &chosen{have: rec, done: release}
}

// renew records that an image that the store has was pulled again, under the names of this pull.
func renew(s *pipeline, found *chosen, n names, p *reporter) (Image, error) {
	defer found.done()
	rec := *found.have
	rec.Tags, rec.Digests = n.tags, n.digests
	rec.PulledAt, rec.Boot, rec.Durable = time.Now().UTC(), s.boot, false // commit knows whether it is durable
	for _, phase := range []string{PhaseExists, PhaseDone} {
		for _, l := range rec.Layers {
			p.report(Progress{Layer: l.Blob, Done: l.Size, Total: l.Size, Phase: phase})
		}
	}
	return s.commit(&rec)
}

// maxChoices is how many of its choices a record keeps: those that were last added.
const maxChoices = 8

// choicesOf adds to those of a record. What is there stays in its place, so that a pull that changes nothing writes
// nothing.
func choicesOf(old, added []string) []string {
	all := slices.Clone(old)
	for _, choice := range added {
		if !slices.Contains(all, choice) {
			all = append(all, choice)
		}
	}
	return all[max(0, len(all)-maxChoices):]
}
