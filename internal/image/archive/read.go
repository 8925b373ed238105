package archive

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/document"
	"berth/internal/image/layer"
	"berth/internal/limit"
)

// Place is where the files of an archive are kept, and how much there may be.
type Place struct {
	Dir   string           // is removed by the caller
	Disk  *diskspace.Gauge // of where that is
	Bytes limit.Budget     // of all files
	// Document is of a file read whole, Documents of all such.
	Document, Documents limit.Budget
}

// Archive is one that was read from a tar: its files lie in a directory under numbers, so that no name in the tar is
// ever a path here.
type Archive struct {
	place     Place
	kept      int   // files that were written, those replaced since among them
	names     int64 // bytes of all names
	documents int64 // bytes of those that were read whole
	files     map[string]archived
	blobs     map[digest.Digest]string // where docker's own form keeps a layer, by its digest
	digests   map[string]digest.Digest // of these files, by their paths here
}

type archived struct {
	path string
	size int64
	link string // another name in the archive
}

// Read reads an archive, plain or compressed, and keeps its files.
func Read(ctx context.Context, r io.Reader, place Place) (*Archive, error) {
	a := &Archive{
		place: place, files: map[string]archived{}, blobs: map[digest.Digest]string{}, digests: map[string]digest.Digest{},
	}
	if err := a.spool(ctx, r); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Archive) spool(ctx context.Context, r io.Reader) error {
	in := &input{r: ctxReader{ctx, r}, place: a.place}
	defer in.close()
	plain, err := layer.Decompress(layer.WithWhole(ctx, in.makeWhole), in, false)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	defer plain.Close()
	tr := tar.NewReader(plain)
	for left := a.place.Bytes.Limit; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if in.failed != nil {
			return in.failed
		}
		if err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "it is not a whole tar archive: %w", err)
		}
		if left -= h.Size; left < 0 {
			return a.place.Bytes.Exceeded()
		}
		if err := a.countNames(h); err != nil {
			return err
		}
		if err := limit.ArchiveFiles.Check(int64(max(len(a.files), a.kept))); err != nil {
			return err
		}
		if err := a.keep(ctx, h, tr); err != nil {
			return err
		}
	}
}

// countNames refuses names that are longer than any path, or too many: they are kept until the archive is read.
func (a *Archive) countNames(h *tar.Header) error {
	for _, name := range []string{h.Name, h.Linkname} {
		if err := limit.EntryName.Check(int64(len(name))); err != nil {
			return err
		}
		a.names += int64(len(name))
	}
	return limit.ArchiveNames.Check(a.names)
}

func (a *Archive) keep(ctx context.Context, h *tar.Header, r io.Reader) error {
	name := path.Clean("/" + h.Name)[1:]
	if old := a.files[name]; old.path != "" { // of a name that comes twice the last is meant
		if err := os.Remove(old.path); err != nil {
			return err
		}
		delete(a.files, name)
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		a.files[name] = archived{link: path.Clean("/" + path.Dir(name) + "/" + h.Linkname)[1:]}
	case tar.TypeLink:
		a.files[name] = archived{link: path.Clean("/" + h.Linkname)[1:]}
	case tar.TypeReg:
		a.kept++
		if err := a.place.Disk.Spend(inodeCost); err != nil {
			return err
		}
		full := filepath.Join(a.place.Dir, strconv.Itoa(a.kept))
		f, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.MultiWriter(a.place.Disk, f), ctxReader{ctx, r})
		err = errors.Join(err, f.Close())
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fail.New(errdefs.ErrInvalidArgument, "it is cut short in %s", name)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		a.files[name] = archived{path: full, size: n}
	}
	return nil
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// file finds a name, through the links of the archive.
func (a *Archive) file(name string) (archived, bool) {
	for range 8 {
		f, ok := a.files[path.Clean("/" + name)[1:]]
		if !ok || f.link == "" {
			return f, ok
		}
		name = f.link
	}
	return archived{}, false
}

func (a *Archive) readFile(name string, into any) error {
	raw, err := a.readRaw(name, true)
	if err != nil {
		return err
	}
	if err := document.CheckValues(raw); fail.Is(err, errdefs.ErrResourceExhausted) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%s: %w", name, err)
	}
	return nil
}

// readRaw reads a document, and counts it unless it was counted before.
func (a *Archive) readRaw(name string, count bool) ([]byte, error) {
	f, ok := a.file(name)
	if !ok {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it has no %s", name)
	}
	if err := a.place.Document.Check(f.size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if count {
		a.documents += f.size
	}
	if err := a.place.Documents.Check(a.documents); err != nil {
		return nil, err
	}
	return os.ReadFile(f.path)
}

// Open opens a blob of the archive. Nothing is proven yet.
func (a *Archive) Open(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	name := a.blobs[desc.Digest]
	if name == "" {
		name = "blobs/" + desc.Digest.Algorithm().String() + "/" + desc.Digest.Encoded()
	}
	f, ok := a.file(name)
	if !ok {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it has no blob %s", desc.Digest)
	}
	return os.Open(f.path)
}

// inodeCost is what a file takes of the disk beside its bytes.
const inodeCost = 4096
