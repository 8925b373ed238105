package image

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/fail"
	"berth/internal/image/archive"
	"berth/internal/image/document"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// ExportRequest says which images to export, and how.
type ExportRequest struct {
	// Images are names or ids. An image named by a tag has this tag in the archive, others have all their tags.
	Images   []string
	Format   string               // archive.FormatOCI if empty
	Compress bool                 // gzip the layers; otherwise they are plain tars
	Progress func(progress.Event) // called from one goroutine at a time; must not block for long
}

// Export writes images as one tar archive to w. The images have the same ids after an import, because the tar of each
// layer is put together again byte for byte and verified by its diff id. The list of images comes last in the archive,
// so that an archive which was cut short has no images. The layers are held until Export returns, even if the images
// are removed meanwhile. If files of a layer have changed on disk, the error names them.
func (s *Store) Export(ctx context.Context, req ExportRequest, w io.Writer) error {
	op := "export image " + strings.Join(req.Images, ", ")
	ctx, cancel := s.bound(ctx)
	defer cancel()
	wanted, release, err := findExports(s, req.Images)
	if err != nil {
		return failed(op, err)
	}
	defer release()
	p := progress.NewReporter(req.Progress)
	defer p.Close()
	err = archive.Write(ctx, w, wanted, archive.Options{
		Format: req.Format, Compress: req.Compress, Disk: gauge(s.pipeline), Progress: p,
		Scratch: func() (string, func(), error) { return s.disk.NewIngest("export.ingest") },
	})
	release()
	return failed(op, errors.Join(err, s.dropRemoved(wanted)))
}

// dropRemoved removes the layers of images that were removed during the export, which held them.
func (s *Store) dropRemoved(wanted []*archive.Image) error {
	for _, w := range wanted {
		if _, there := s.Get(w.ID.String()); !there {
			return s.sweeper.Sweep(s.ctx)
		}
	}
	return nil
}

// findExports finds the images to export, each once, and holds their layers.
func findExports(s *Store, refs []string) (wanted []*archive.Image, release func(), err error) {
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	if len(refs) == 0 {
		return nil, nil, fail.New(errdefs.ErrInvalidArgument, "no image is named")
	}
	byID := map[string]*archive.Image{}
	for _, ref := range refs {
		meant := ref
		if img, ok := s.Get(ref); ok {
			meant = img.ID // users may give the beginning of an id
		}
		img, done, err := s.Use(meant)
		if err != nil {
			release()
			return nil, nil, fail.New(errdefs.ErrNotFound, "there is no image %s: pull it first", ref)
		}
		releases = append(releases, done)
		x := byID[img.ID]
		if x == nil {
			if x, err = exported(s, img); err != nil {
				release()
				return nil, nil, err
			}
			byID[img.ID], wanted = x, append(wanted, x)
		}
		x.Tags = reference.Union(x.Tags, tagsAsked(img, ref))
	}
	return wanted, release, nil
}

// exported prepares an image to be written to an archive. It reads the config now, because Remove may delete the record
// during the export.
func exported(s *Store, img Image) (*archive.Image, error) {
	config, err := img.RawConfig()
	if err != nil {
		return nil, err
	}
	x := &archive.Image{ID: digest.Digest(img.ID), Config: config, Platform: platformOf(img.Config)}
	for _, ref := range img.LayerRefs {
		x.Layers = append(x.Layers, archive.Layer{DiffID: ref.DiffID, Dir: s.disk.LayerDir(ref.ID)})
	}
	if img.Artifact == "" {
		return x, nil
	}
	return x, exportedArtifact(x, img)
}

// exportedArtifact prepares an artifact: its manifest names the blobs, so these have to be the same in the archive.
func exportedArtifact(x *archive.Image, img Image) error {
	m, config, err := img.ArtifactDocuments()
	if err != nil {
		return err
	}
	parts, err := document.PartsOf(m)
	if err != nil || len(parts) != len(x.Layers) {
		return fail.New(errdefs.ErrDataLoss, "the manifest of artifact %s and its record do not have the same layers: %w",
			img.ID, err)
	}
	x.Artifact = &archive.Artifact{Config: config, Manifest: *m}
	for i, part := range parts {
		l := &x.Layers[i]
		l.Blob = &m.Layers[i]
		l.File = part.Path != "" && l.DiffID != l.Blob.Digest
		if !l.File && l.DiffID != l.Blob.Digest {
			return fail.New(errdefs.ErrFailedPrecondition, "its layer %s is compressed, and Berth keeps what it unpacked but "+
				"not the blob: packed again it would be another artifact. Copy it from registry to registry", l.Blob.Digest)
		}
	}
	return nil
}

// tagsAsked returns the tags that an image is exported with when it is asked for as ref.
func tagsAsked(img Image, ref string) []string {
	if r, err := reference.Parse(ref); err == nil {
		for _, tag := range img.RepoTags {
			if tag == r.String() {
				return []string{tag}
			}
		}
	}
	return img.RepoTags
}
