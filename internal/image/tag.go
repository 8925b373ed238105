package image

import (
	"errors"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/reference"
)

// Tag adds a tag to the image that the id, tag or digest names. Another image that has the tag loses it. Tag may be
// repeated.
func Tag(s *Store, refOrID, name string) error {
	op := "tag image " + refOrID
	ref, err := reference.Parse(name)
	if err != nil {
		return failed(op, err)
	}
	if ref.Digest() != "" {
		return failed(op, fail.New(errdefs.ErrInvalidArgument, "%s names a digest, which is not for anybody to give", name))
	}
	img, release, err := s.Use(refOrID) // so that Sweep keeps its layers meanwhile
	if err != nil {
		return failed(op, err)
	}
	defer release()
	err = catalog.ErrRemoved
	if rec := s.catalog.Record(img.ID); rec != nil {
		tagged := *rec
		tagged.Tags, tagged.Anew = []string{ref.String()}, false
		_, err = catalog.Commit(s.catalog, &tagged)
	}
	if errors.Is(err, catalog.ErrRemoved) {
		err = fail.New(errdefs.ErrNotFound, "image %s was removed meanwhile", img.ID)
	}
	return failed(op, s.disk.Explain(err))
}

// Untag takes a tag away from the image that has it. The image itself stays, and nothing happens where none has the
// tag.
func Untag(s *Store, name string) error {
	op := "untag image " + name
	ref, err := reference.Parse(name)
	if err != nil {
		return failed(op, err)
	}
	if ref.Digest() != "" {
		return failed(op, fail.New(errdefs.ErrInvalidArgument, "%s names a digest, which nobody takes away", name))
	}
	return failed(op, s.disk.Explain(catalog.Untag(s.catalog, ref.String())))
}
