package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/image/layer"
	"berth/internal/room"
)

// Formats of an exported archive. Both can be given to `docker load`.
const (
	FormatOCI    = "oci"    // an OCI image layout, with docker's manifest.json beside its index
	FormatDocker = "docker" // what `docker save` wrote before it wrote layouts
)

// ExportRequest says which images to export, and how.
type ExportRequest struct {
	// Images are names or ids. An image asked for by tag gets this tag in the archive, any other one all its tags.
	Images   []string
	Format   string         // FormatOCI when empty
	Compress bool           // gzip the layers; otherwise they are the plain tars that the diff ids are of
	Progress func(Progress) // called from one goroutine at a time; must not block for long
}

// Export writes images as one tar archive to w. They have the same ids wherever the archive is read: layers are put together
// byte for byte as they came, and each is proven by its diff id. What lists the archive's images comes last, so that one
// that was cut short holds none. The layers stay for as long as it takes, also when the images are removed meanwhile. The
// error of a layer whose files have changed on disk names them.
func (s *Store) Export(ctx context.Context, req ExportRequest, w io.Writer) error {
	op := "export image " + strings.Join(req.Images, ", ")
	ctx, cancel := s.bound(ctx)
	defer cancel()
	wanted, release, err := findExports(s, req.Images)
	if err != nil {
		return failed(op, err)
	}
	defer release()
	a, err := newArchiveForm(req.Format, req.Compress)
	if err != nil {
		return failed(op, err)
	}
	p := newReporter(req.Progress)
	defer p.close()
	x := &exporter{
		disk: s.disk, gauge: gauge(s.pipeline), form: a, compress: req.Compress, tar: tar.NewWriter(ctxWriter{ctx, w}),
		done: map[string]ocispec.Descriptor{}, progress: p,
	}
	err = x.run(ctx, wanted)
	release()
	return failed(op, errors.Join(err, s.dropRemoved(wanted)))
}

// dropRemoved collects the layers of images that were removed while they were exported: Remove had to leave them.
func (s *Store) dropRemoved(wanted []*export) error {
	for _, w := range wanted {
		if _, there := s.Get(w.img.ID); !there {
			return s.sweeper.sweep(s.ctx)
		}
	}
	return nil
}

// ctxWriter is the reader's end of an archive.
type ctxWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c ctxWriter) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(p)
	if err != nil {
		err = fail.New(context.Canceled, "nobody takes the archive any more: %w", err)
	}
	return n, err
}

// export is one image to be written, and what it is called in the archive.
type export struct {
	img    Image
	config []byte
	tags   []string
}

// findExports finds what is asked for, each image once, and holds it.
func findExports(s *Store, refs []string) (wanted []*export, release func(), err error) {
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	if len(refs) == 0 {
		return nil, nil, fail.New(errdefs.ErrInvalidArgument, "no image is named")
	}
	byID := map[string]*export{}
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
			x = &export{img: img}
			if x.config, err = img.RawConfig(); err != nil { // now: Remove leaves the layers of what is exported, and no record
				release()
				return nil, nil, err
			}
			byID[img.ID], wanted = x, append(wanted, x)
		}
		x.tags = union(x.tags, tagsAsked(img, ref))
	}
	return wanted, release, nil
}

// tagsAsked are the tags that an image asked for as ref is exported with.
func tagsAsked(img Image, ref string) []string {
	if r, err := ParseReference(ref); err == nil {
		for _, tag := range img.RepoTags {
			if tag == r.String() {
				return []string{tag}
			}
		}
	}
	return img.RepoTags
}

// exporter writes one archive.
type exporter struct {
	disk     *disk
	gauge    *room.Gauge // of where layers are compressed
	form     archiveForm
	compress bool
	tar      *tar.Writer
	done     map[string]ocispec.Descriptor // what is in the archive, by the name of its file
	progress *reporter
}

func (x *exporter) run(ctx context.Context, wanted []*export) error {
	for _, w := range wanted {
		var layers []ocispec.Descriptor
		for _, ref := range w.img.refs {
			desc, err := x.layer(ctx, ref)
			if err != nil {
				return fmt.Errorf("layer %s: %w", ref.DiffID, err)
			}
			layers = append(layers, desc)
		}
		files, err := x.form.image(w, layers)
		if err != nil {
			return err
		}
		if err := x.files(files); err != nil {
			return err
		}
	}
	last, err := x.form.end()
	if err != nil {
		return err
	}
	if err := x.files(last); err != nil {
		return err
	}
	return x.tar.Close()
}

// memberFile is a small file of the archive.
type memberFile struct {
	name string
	body []byte
}

func (x *exporter) files(files []memberFile) error {
	for _, f := range files {
		if _, there := x.done[f.name]; there {
			continue
		}
		x.done[f.name] = ocispec.Descriptor{}
		if err := x.header(f.name, int64(len(f.body))); err != nil {
			return err
		}
		if _, err := io.Copy(x.tar, bytes.NewReader(f.body)); err != nil {
			return err
		}
	}
	return nil
}

// header begins a file. Archives of the same images are the same bytes, so there is no time in them.
func (x *exporter) header(name string, size int64) error {
	return x.tar.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: size, ModTime: time.Unix(0, 0)})
}

// layer writes a layer, unless it is in the archive already.
func (x *exporter) layer(ctx context.Context, ref layerRef) (ocispec.Descriptor, error) {
	key := "layer " + ref.DiffID.String()
	if desc, there := x.done[key]; there {
		return desc, nil
	}
	src, err := layer.OpenTar(x.disk.layerDir(ref.ID))
	if errors.Is(err, layer.ErrNoSkeleton) {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrFailedPrecondition,
			"an earlier release of Berth unpacked it, and kept too little to export it: remove the image (`berth image rm`), pull it again, and export it then")
	}
	if err != nil {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrDataLoss, "%w: %s", err, adviseCheck)
	}
	l := &listeners{}
	defer l.add(x.progress)()
	l.report(Progress{Layer: ref.DiffID, Total: src.Size, Phase: PhaseExporting})
	o := &original{ref: ref, dir: x.disk.layerDir(ref.ID), tar: src, tell: func(n int64) {
		l.report(Progress{Layer: ref.DiffID, Done: n, Total: src.Size, Phase: PhaseExporting})
	}}
	desc, err := x.place(ctx, o)
	if err != nil {
		return desc, err
	}
	l.report(Progress{Layer: ref.DiffID, Done: src.Size, Total: src.Size, Phase: PhaseDone})
	x.done[key] = desc
	return desc, nil
}

func (x *exporter) place(ctx context.Context, o *original) (ocispec.Descriptor, error) {
	if x.compress {
		return x.zipped(ctx, o)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: o.ref.DiffID, Size: o.tar.Size}
	if err := x.header(x.form.layerName(desc.Digest), desc.Size); err != nil {
		return desc, err
	}
	return desc, o.copyTo(ctx, x.tar)
}

// zipped compresses a layer into a file first: the archive wants its digest and size before its content.
func (x *exporter) zipped(ctx context.Context, o *original) (desc ocispec.Descriptor, err error) {
	dir, done, err := x.disk.newIngest("export.ingest")
	if err != nil {
		return desc, err
	}
	defer done()
	f, err := os.OpenFile(filepath.Join(dir, "blob"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return desc, err
	}
	defer f.Close()
	sum := digest.Canonical.Digester()
	z := gzip.NewWriter(io.MultiWriter(x.gauge, f, sum.Hash()))
	if err := o.copyTo(ctx, z); err != nil {
		return desc, err
	}
	if err := z.Close(); err != nil {
		return desc, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return desc, err
	}
	desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: sum.Digest(), Size: size}
	if err := x.header(x.form.layerName(desc.Digest), desc.Size); err != nil {
		return desc, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return desc, err
	}
	_, err = io.Copy(x.tar, f)
	return desc, err
}

const adviseCheck = "`berth check --repair` fetches the layer again"

// original is a layer's tar on its way out.
type original struct {
	ref  layerRef
	dir  string
	tar  *layer.Tar
	tell func(done int64)
	n    int64
}

// copyTo writes the tar to w, and proves it.
func (o *original) copyTo(ctx context.Context, w io.Writer) error {
	sum := o.ref.DiffID.Algorithm().Digester()
	err := o.tar.CopyTo(ctx, io.MultiWriter(w, sum.Hash(), o))
	var damaged *layer.DamagedError
	if errors.As(err, &damaged) {
		return fail.New(errdefs.ErrDataLoss, "its files have changed on disk: %w: %s", err, adviseCheck)
	}
	if err != nil {
		return err
	}
	if sum.Digest() != o.ref.DiffID {
		return differences(ctx, o.dir)
	}
	return nil
}

func (o *original) Write(p []byte) (int, error) {
	o.n += int64(len(p))
	o.tell(o.n)
	return len(p), nil
}

// differences says which files made the tar of the layer in dir come out different.
func differences(ctx context.Context, dir string) error {
	const most = 3
	var found []string
	err := layer.Verify(ctx, dir, func(path, problem string) { found = append(found, path+" "+problem) })
	if err != nil {
		return fail.New(errdefs.ErrDataLoss, "its files have changed on disk, and which of them cannot be told: %w: %s", err,
			adviseCheck)
	}
	if len(found) == 0 {
		found = []string{"what is kept of its tar was damaged"}
	}
	if n := len(found); n > most {
		found = append(found[:most], fmt.Sprintf("and %d more", n-most))
	}
	return fail.New(errdefs.ErrDataLoss, "its files have changed on disk: %s: %s", strings.Join(found, ", "), adviseCheck)
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}
