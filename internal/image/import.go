package image

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/archive"
	"berth/internal/image/document"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
	"berth/internal/limit"
)

// Import adds the images of an archive to the store. The archive is an OCI layout or the output of `docker save`, plain
// or compressed. From an index Import takes the image for the store's platform. Images get the names that the archive
// gives them; images without a name are found by id.
func (s *Store) Import(ctx context.Context, r io.Reader, tell func(progress.Event)) ([]Image, error) {
	const op = "import image archive"
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := enough(ctx, s.pipeline, 0); err != nil {
		return nil, failed(op, err)
	}
	dir, done, err := s.disk.NewIngest("import.ingest")
	if err != nil {
		return nil, failed(op, s.disk.Explain(err))
	}
	defer done()
	now := s.pipeline.settings()
	a, err := archive.Read(ctx, r, archive.Place{
		Dir: dir, Disk: gauge(s.pipeline), Bytes: limit.ArchiveBytes.At(now.MaxLayerBytes),
		Document:  limit.ArchiveDocument.At(max(now.MaxConfigBytes, now.MaxManifestBytes)),
		Documents: now.documents(),
	})
	if err != nil {
		s.sweeper.MakeRoom(s.ctx, err)
		return nil, failed(op, s.disk.Explain(err))
	}
	p := progress.NewReporter(tell)
	defer p.Close()
	imgs, err := s.pipeline.importAll(ctx, archiveSource{a}, p)
	s.settle(err)
	return imgs, failed(op, s.disk.Explain(err))
}

func (s *pipeline) importAll(ctx context.Context, a archiveSource, p *progress.Reporter) ([]Image, error) {
	found, err := imagesIn(ctx, s, a)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it holds no image: neither index.json nor manifest.json is in it")
	}
	var out []Image
	for _, f := range once(found) {
		again, err := f.find(ctx)
		if err != nil {
			return out, err
		}
		img, err := s.admit(ctx, again, f.names, a, p)
		if err != nil {
			return out, err
		}
		out = append(out, img)
	}
	return out, nil
}

// once merges the entries of an image into one with all its names. An archive has an entry for each name.
func once(found []imported) []imported {
	var out []imported
	at := map[imageKey]int{}
	for _, f := range found {
		n, there := at[f.key]
		if !there {
			at[f.key] = len(out)
			out = append(out, f)
			continue
		}
		out[n].names.tags = reference.Union(out[n].names.tags, f.names.tags)
		out[n].names.digests = reference.Union(out[n].names.digests, f.names.digests)
		out[n].names.choices = reference.Union(out[n].names.choices, f.names.choices)
	}
	return out
}

// archiveSource is an archive as a source of images.
type archiveSource struct{ archive *archive.Archive }

func (a archiveSource) open(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	return a.archive.Open(ctx, desc)
}

// imported is an image found in an archive. Its documents are not kept but found again when it is its turn: an archive
// may list ten thousand.
type imported struct {
	key   imageKey
	names names
	find  func(context.Context) (*chosen, error)
}

// imageKey tells images of an archive from each other.
type imageKey struct {
	id       digest.Digest
	artifact bool
}

func keyOf(i *document.Image) imageKey { return imageKey{i.ID(), i.Artifact != nil} }

// imagesIn returns the images of an archive.
func imagesIn(ctx context.Context, s *pipeline, a archiveSource) ([]imported, error) {
	switch {
	case a.archive.IsLayout():
		return inLayout(ctx, s, a)
	case a.archive.IsSaved():
		return inSaved(ctx, s, a)
	}
	return nil, nil
}

// inLayout chooses the images of an OCI image layout that are for the store's platform. What lies beside them to say
// something of them (signatures, attestations, lists of what they are made of) is left out, as in an index.
func inLayout(ctx context.Context, s *pipeline, a archiveSource) ([]imported, error) {
	layout, err := a.archive.Layout()
	if err != nil {
		return nil, err
	}
	c, err := s.chooser(a, "")
	if err != nil {
		return nil, err
	}
	var out []imported
	var other error // why one is no image
	for _, desc := range layout.Manifests {
		beside := len(layout.Manifests) > 1
		if beside && !document.MayBeArtifact(desc) {
			continue // an attestation
		}
		f, err := c.choose(ctx, desc)
		if beside && kindOf(err) == errdefs.ErrNotFound {
			continue // for another platform
		}
		if beside && errors.Is(err, document.ErrArtifact) {
			other = cmp.Or(other, err) // a signature
			continue
		}
		if err != nil {
			return nil, err
		}
		called := layout.Names(desc, f.doc.ID())
		f.done()
		if beside && f.doc.Manifest.Subject != nil && len(called.Tags)+len(called.Digests) == 0 {
			continue // it says something of another one
		}
		n := names{tags: called.Tags, digests: called.Digests}
		if len(called.Digests) > 0 { // a pull that finds this digest in the registry need not look what it leads to
			n.choices = []string{c.choice(desc.Digest)}
		}
		out = append(out, imported{keyOf(&f.doc), n, func(ctx context.Context) (*chosen, error) {
			c, err := s.chooser(a, "")
			if err != nil {
				return nil, err
			}
			return c.choose(ctx, desc)
		}})
	}
	if len(out) == 0 && other != nil {
		return nil, other
	}
	if len(out) == 0 && len(layout.Manifests) > 0 {
		return nil, fail.New(errdefs.ErrNotFound, "it has no image for the platform %s", s.platform.name)
	}
	return out, nil
}

// inSaved returns the images in manifest.json, the list that `docker save` writes.
func inSaved(ctx context.Context, s *pipeline, a archiveSource) (out []imported, err error) {
	now := s.settings()
	limits := archive.SavedLimits{
		Config: limit.ConfigBytes.At(now.MaxConfigBytes), Manifest: now.documentLimits(),
	}
	saved, err := a.archive.Saved()
	for _, img := range saved {
		find := func(ctx context.Context) (*chosen, error) {
			doc, err := a.archive.Document(ctx, limits, img)
			if err != nil {
				return nil, err
			}
			return &chosen{doc: *doc}, nil
		}
		f, err := find(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, imported{keyOf(&f.doc), names{tags: img.Tags}, find})
	}
	return out, err
}
