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
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// ExportRequest says which images to export, and how.
type ExportRequest struct {
	// Images are names or ids. An image asked for by tag gets this tag in the archive, any other one all its tags.
	Images   []string
	Format   string               // archive.FormatOCI when empty
	Compress bool                 // gzip the layers; otherwise they are the plain tars that the diff ids are of
	Progress func(progress.Event) // called from one goroutine at a time; must not block for long
}

// Export writes images as one tar archive to w. They have the same ids wherever the archive is read: layers are put
// together byte for byte as they came, and each is proven by its diff id. What lists the archive's images comes last,
// so that one that was cut short holds none. The layers stay for as long as it takes, also when the images are removed
// meanwhile. The error of a layer whose files have changed on disk names them.
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

// dropRemoved collects the layers of images that were removed while they were exported: Remove had to leave them.
func (s *Store) dropRemoved(wanted []*archive.Image) error {
	for _, w := range wanted {
		if _, there := s.Get(w.ID.String()); !there {
			return s.sweeper.Sweep(s.ctx)
		}
	}
	return nil
}

// findExports finds what is asked for, each image once, and holds it.
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
			meant = img.ID // people type the beginning of an id
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

// exported is an image as it is written to an archive. Its config is read at once: Remove leaves the layers of what is
// exported, and no record.
func exported(s *Store, img Image) (*archive.Image, error) {
	config, err := img.RawConfig()
	if err != nil {
		return nil, err
	}
	x := &archive.Image{ID: digest.Digest(img.ID), Config: config, Platform: platformOf(img.Config)}
	for _, ref := range img.LayerRefs {
		x.Layers = append(x.Layers, archive.Layer{DiffID: ref.DiffID, Dir: s.disk.LayerDir(ref.ID)})
	}
	return x, nil
}

// tagsAsked are the tags that an image asked for as ref is exported with.
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
