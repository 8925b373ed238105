package image

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
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/layer"
	"berth/internal/limit"
	"berth/internal/room"
)

// Import reads an archive, an OCI layout or what `docker save` writes, plain or compressed, and makes its images part of
// the store. Of an index it takes the image for the store's platform. What the archive names gets its names; the rest is
// found by id.
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	const op = "import image archive"
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := enough(ctx, s.pipeline); err != nil {
		return nil, failed(op, err)
	}
	dir, done, err := s.disk.newIngest("import.ingest")
	if err != nil {
		return nil, failed(op, s.disk.explain(err))
	}
	defer done()
	a := &archive{
		dir:      dir,
		disk:     gauge(s.pipeline),
		document: limit.ArchiveDocument.At(max(s.pipeline.settings().MaxConfigBytes, s.pipeline.settings().MaxManifestBytes)),
		files:    map[string]archived{},
	}
	if err := a.spool(ctx, r, limit.ArchiveBytes.At(s.pipeline.settings().MaxLayerBytes)); err != nil {
		s.sweeper.makeRoom(s.ctx, err)
		return nil, failed(op, s.disk.explain(err))
	}
	p := newReporter(progress)
	defer p.close()
	imgs, err := s.pipeline.importAll(ctx, a, p)
	s.sweeper.makeRoom(s.ctx, err)
	return imgs, failed(op, s.disk.explain(err))
}

func (s *pipeline) importAll(ctx context.Context, a *archive, p *reporter) ([]Image, error) {
	found, err := a.contents(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it holds no image: neither index.json nor manifest.json is in it")
	}
	var out []Image
	for _, f := range once(found) {
		img, err := s.admit(ctx, f.chosen, f.names, a, p)
		if err != nil {
			return out, err
		}
		out = append(out, img)
	}
	return out, nil
}

// once leaves each image in one place, with all its names: an archive lists an image for each of them.
func once(found []imported) []imported {
	var out []imported
	at := map[digest.Digest]int{}
	for _, f := range found {
		id := f.chosen.manifest.Config.Digest
		n, there := at[id]
		if !there {
			at[id] = len(out)
			out = append(out, f)
			continue
		}
		out[n].names.tags = union(out[n].names.tags, f.names.tags)
		out[n].names.digests = union(out[n].names.digests, f.names.digests)
	}
	return out
}

// archive is a source that was read from a tar: its files lie in a directory under numbers, so that no name in the tar is
// ever a path here.
type archive struct {
	dir      string
	disk     *room.Gauge  // of where the files are written
	document limit.Budget // of a file read whole
	kept     int          // files that were written, those replaced since among them
	names    int64        // bytes of all names
	files    map[string]archived
	blobs    map[digest.Digest]string // where docker's own form keeps a layer or config, by diff id or digest
}

type archived struct {
	path string
	size int64
	link string // another name in the archive
}

// imported is an image found in an archive.
type imported struct {
	chosen *chosen
	names  names
}

func (a *archive) spool(ctx context.Context, r io.Reader, most limit.Budget) error {
	plain, err := layer.Decompress(ctx, r)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	}
	defer plain.Close()
	tr := tar.NewReader(plain)
	for left := most.Limit; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "it is not a whole tar archive: %w", err)
		}
		if left -= h.Size; left < 0 {
			return most.Exceeded()
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
func (a *archive) countNames(h *tar.Header) error {
	for _, name := range []string{h.Name, h.Linkname} {
		if err := limit.EntryName.Check(int64(len(name))); err != nil {
			return err
		}
		a.names += int64(len(name))
	}
	return limit.ArchiveNames.Check(a.names)
}

func (a *archive) keep(ctx context.Context, h *tar.Header, r io.Reader) error {
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
		if err := a.disk.Spend(inodeCost); err != nil {
			return err
		}
		full := filepath.Join(a.dir, strconv.Itoa(a.kept))
		f, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.MultiWriter(a.disk, f), ctxReader{ctx, r})
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
func (a *archive) file(name string) (archived, bool) {
	for range 8 {
		f, ok := a.files[path.Clean("/" + name)[1:]]
		if !ok || f.link == "" {
			return f, ok
		}
		name = f.link
	}
	return archived{}, false
}

func (a *archive) readFile(name string, into any) error {
	raw, err := a.readRaw(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%s: %w", name, err)
	}
	return nil
}

func (a *archive) readRaw(name string) ([]byte, error) {
	f, ok := a.file(name)
	if !ok {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it has no %s", name)
	}
	if err := a.document.Check(f.size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.ReadFile(f.path)
}

// open is what makes an archive a source.
func (a *archive) open(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
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

func (a *archive) contents(ctx context.Context, s *pipeline) ([]imported, error) {
	if _, ok := a.file("index.json"); ok {
		return a.layout(ctx, s)
	}
	if _, ok := a.file("manifest.json"); ok {
		return a.saved(ctx, s)
	}
	return nil, nil
}

// layout reads an OCI image layout.
func (a *archive) layout(ctx context.Context, s *pipeline) ([]imported, error) {
	var idx ocispec.Index
	if err := a.readFile("index.json", &idx); err != nil {
		return nil, err
	}
	c, err := s.chooser(a, "")
	if err != nil {
		return nil, err
	}
	tags := a.savedTags()
	var out []imported
	for _, desc := range idx.Manifests {
		f, err := c.choose(ctx, desc)
		if kindOf(err) == errdefs.ErrNotFound && len(idx.Manifests) > 1 {
			continue // of another platform
		}
		if err != nil {
			return nil, err
		}
		out = append(out, imported{f, namesOf(desc, tags[f.manifest.Config.Digest.Encoded()])})
	}
	if len(out) == 0 && len(idx.Manifests) > 0 {
		return nil, fail.New(errdefs.ErrNotFound, "it has no image for the platform %s", s.platform.name)
	}
	return out, nil
}

// namesOf is what annotations, or docker's own list, call an image. An image that is called by a tag gets no name by its digest:
// an archive can be packed anew, and then no registry knows a manifest of that digest in this repository.
func namesOf(desc ocispec.Descriptor, more []string) names {
	var n names
	for _, s := range append([]string{desc.Annotations["io.containerd.image.name"], desc.Annotations[ocispec.AnnotationRefName]}, more...) {
		if !strings.ContainsAny(s, "/:") {
			continue // a bare tag names no image
		}
		ref, err := ParseReference(s)
		if err != nil {
			continue
		}
		if ref.Digest() == "" {
			n.tags = union(n.tags, []string{ref.String()})
			continue
		}
		n.digests = union(n.digests, []string{ref.at(desc.Digest)})
	}
	return n
}

// saveEntry is one image in docker's manifest.json.
type saveEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// savedTags are the tags in a manifest.json beside an index.json, by the hex of the config.
func (a *archive) savedTags() map[string][]string {
	var entries []saveEntry
	if _, ok := a.file("manifest.json"); !ok || a.readFile("manifest.json", &entries) != nil {
		return nil
	}
	out := map[string][]string{}
	for _, e := range entries {
		hex := strings.TrimSuffix(path.Base(e.Config), ".json")
		out[hex] = append(out[hex], e.RepoTags...)
	}
	return out
}

// saved reads what `docker save` wrote before it wrote layouts. There is no manifest: one is made up, in which each layer
// goes by the digest of the file that holds it.
func (a *archive) saved(ctx context.Context, s *pipeline) ([]imported, error) {
	var entries []saveEntry
	if err := a.readFile("manifest.json", &entries); err != nil {
		return nil, err
	}
	a.blobs = map[digest.Digest]string{}
	var out []imported
	for _, e := range entries {
		f, err := a.savedImage(ctx, s, e)
		if err != nil {
			return nil, err
		}
		var n names
		for _, tag := range e.RepoTags {
			ref, err := ParseReference(tag)
			if err != nil {
				return nil, err
			}
			n.tags = append(n.tags, ref.String())
		}
		out = append(out, imported{f, n})
	}
	return out, nil
}

func (a *archive) savedImage(ctx context.Context, s *pipeline, e saveEntry) (*chosen, error) {
	raw, err := a.readRaw(e.Config)
	if err != nil {
		return nil, err
	}
	if err := limit.ConfigBytes.At(s.settings().MaxConfigBytes).Check(int64(len(raw))); err != nil {
		return nil, fmt.Errorf("config %s: %w", e.Config, err)
	}
	f := &chosen{rawConfig: raw}
	f.manifest.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	if f.config, err = parseConfig(raw); err != nil {
		return nil, fail.New(errdefs.ErrInvalidArgument, "%s: %w", e.Config, err)
	}
	if err := checkConfig(f.config); err != nil {
		return nil, err
	}
	for _, name := range e.Layers {
		desc, err := a.describe(ctx, name)
		if err != nil {
			return nil, err
		}
		f.manifest.Layers = append(f.manifest.Layers, desc)
	}
	c := &chooser{store: s}
	if err := c.checkManifest(&f.manifest); err != nil {
		return nil, err
	}
	return f, f.agree()
}

func (a *archive) describe(ctx context.Context, name string) (ocispec.Descriptor, error) {
	f, ok := a.file(name)
	if !ok {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrInvalidArgument, "it has no layer %s", name)
	}
	in, err := os.Open(f.path)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer in.Close()
	d, err := digest.FromReader(ctxReader{ctx, in})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	a.blobs[d] = name
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: f.size}, nil
}
