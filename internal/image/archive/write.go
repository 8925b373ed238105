package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/damage"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
)

// Formats of an exported archive. Both can be given to `docker load`.
const (
	FormatOCI    = "oci"    // an OCI image layout, with docker's manifest.json beside its index
	FormatDocker = "docker" // what `docker save` wrote before it wrote layouts
)

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

// Image is one image to be written.
type Image struct {
	ID       digest.Digest
	Config   []byte
	Platform ocispec.Platform
	Tags     []string  // what it is called in the archive
	Layers   []Layer   // the lowest first
	Artifact *Artifact // nil for an image
}

// Artifact is what an artifact to be written has beyond an image. Its ID is the digest of its manifest, and Config of
// the Image is that manifest.
type Artifact struct {
	Manifest ocispec.Manifest
	Config   []byte
}

// Layer is one layer of an image to be written.
type Layer struct {
	DiffID digest.Digest
	Dir    string              // holds it, as package layer has it
	Blob   *ocispec.Descriptor // what it has to be in the archive; nil where a new manifest can name it
	File   bool                // the blob is the one file of the tar, not the tar
}

// Options say how an archive is written.
type Options struct {
	Format   string                                      // FormatOCI when empty
	Compress bool                                        // gzip the layers
	Scratch  func() (dir string, done func(), err error) // makes a directory in which a layer is compressed
	Disk     *diskspace.Gauge                            // of where that is
	Progress *progress.Reporter
}

// Write writes images as one tar archive to w. They have the same ids wherever the archive is read: layers are put
// together byte for byte as they came, and each is proven by its diff id. What lists the archive's images comes last,
// so that one that was cut short holds none.
func Write(ctx context.Context, w io.Writer, images []*Image, o Options) error {
	f, err := newForm(o.Format, o.Compress)
	if err != nil {
		return err
	}
	for _, img := range images {
		if img.Artifact != nil && o.Format == FormatDocker {
			return fail.New(errdefs.ErrInvalidArgument, "docker's own format has no artifacts: export them in the format %s",
				FormatOCI)
		}
	}
	x := &writer{
		options: o, form: f, tar: tar.NewWriter(ctxWriter{ctx, w}), done: map[string]ocispec.Descriptor{},
	}
	return x.run(ctx, images)
}

// writer writes one archive.
type writer struct {
	options Options
	form    form
	tar     *tar.Writer
	done    map[string]ocispec.Descriptor // what is in the archive, by the name of its file
}

func (x *writer) run(ctx context.Context, images []*Image) error {
	for _, w := range images {
		var layers []ocispec.Descriptor
		for _, l := range w.Layers {
			desc, err := x.layer(ctx, l)
			if err != nil {
				return fmt.Errorf("layer %s: %w", l.DiffID, err)
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

func (x *writer) files(files []memberFile) error {
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
func (x *writer) header(name string, size int64) error {
	return x.tar.WriteHeader(&tar.Header{
		Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: size, ModTime: time.Unix(0, 0),
	})
}

// layer writes a layer, unless it is in the archive already.
func (x *writer) layer(ctx context.Context, one Layer) (ocispec.Descriptor, error) {
	key := "layer " + one.DiffID.String()
	if one.Blob != nil {
		key = "blob " + one.Blob.Digest.String()
	}
	if desc, there := x.done[key]; there {
		return desc, nil
	}
	src, err := layer.OpenTar(one.Dir)
	if errors.Is(err, layer.ErrNoTarSplit) {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrFailedPrecondition,
			"an earlier release of Berth unpacked it, and kept too little to export it: remove the image (`berth image rm`), "+
				"pull it again, and export it then")
	}
	if err != nil {
		return ocispec.Descriptor{}, fail.New(errdefs.ErrDataLoss, "%w: %s", err, damage.Advice)
	}
	l := &progress.Listeners{}
	defer l.Add(x.options.Progress)()
	l.Report(progress.Event{Layer: one.DiffID, Total: src.Size, Phase: progress.Exporting})
	o := &original{layer: one, tar: src, tell: func(n int64) {
		l.Report(progress.Event{Layer: one.DiffID, Done: n, Total: src.Size, Phase: progress.Exporting})
	}}
	desc, err := x.place(ctx, o)
	if err != nil {
		return desc, err
	}
	l.Report(progress.Event{Layer: one.DiffID, Done: src.Size, Total: src.Size, Phase: progress.Done})
	x.done[key] = desc
	return desc, nil
}

func (x *writer) place(ctx context.Context, o *original) (ocispec.Descriptor, error) {
	if blob := o.layer.Blob; blob != nil {
		if err := x.header(x.form.layerName(blob.Digest), blob.Size); err != nil {
			return *blob, err
		}
		if o.layer.File {
			return *blob, o.copyFileTo(ctx, x.tar)
		}
		return *blob, o.copyTo(ctx, x.tar)
	}
	if x.options.Compress {
		return x.zipped(ctx, o)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: o.layer.DiffID, Size: o.tar.Size}
	if err := x.header(x.form.layerName(desc.Digest), desc.Size); err != nil {
		return desc, err
	}
	return desc, o.copyTo(ctx, x.tar)
}

// zipped compresses a layer into a file first: the archive wants its digest and size before its content.
func (x *writer) zipped(ctx context.Context, o *original) (desc ocispec.Descriptor, err error) {
	dir, done, err := x.options.Scratch()
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
	z := gzip.NewWriter(io.MultiWriter(x.options.Disk, f, sum.Hash()))
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

// original is a layer's tar on its way out.
type original struct {
	layer Layer
	tar   *layer.Tar
	tell  func(done int64)
	n     int64
}

// copyTo writes the tar to w, and proves it.
func (o *original) copyTo(ctx context.Context, w io.Writer) error {
	sum := o.layer.DiffID.Algorithm().Digester()
	err := o.tar.CopyTo(ctx, io.MultiWriter(w, sum.Hash(), o))
	var damaged *layer.DamagedError
	if errors.As(err, &damaged) {
		return fail.New(errdefs.ErrDataLoss, "its files have changed on disk: %w: %s", err, damage.Advice)
	}
	if err != nil {
		return err
	}
	if sum.Digest() != o.layer.DiffID {
		return damage.Differences(ctx, o.layer.Dir)
	}
	return nil
}

func (o *original) Write(p []byte) (int, error) {
	o.n += int64(len(p))
	o.tell(o.n)
	return len(p), nil
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}
