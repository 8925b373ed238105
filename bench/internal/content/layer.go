package content

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"berth/test/fixture"
)

// The compressions: gzip at level 6 and zstd at level 3, by the libraries that builders of images use.
const (
	Gzip = "gzip"
	Zstd = "zstd"
)

// A Layer is in files, compressed both ways.
type Layer struct {
	Entries int
	Plain   int64 // bytes of its tar
	diffID  v1.Hash
	blobs   map[string]*blob
}

// Layers makes one layer of each size, in bytes of file content, and keeps their blobs in dir.
func (t *Tree) Layers(dir string, sizes ...int64) ([]*Layer, error) {
	layers := make([]*Layer, len(sizes))
	var g errgroup.Group
	g.SetLimit(2)
	for i, size := range sizes {
		files, err := t.cut(size)
		if err != nil {
			return nil, errors.Join(err, g.Wait())
		}
		g.Go(func() (err error) {
			layers[i], err = pack(dir, files)
			return err
		})
	}
	return layers, g.Wait()
}

// pack writes the tar through both compressors at once.
func pack(dir string, files []string) (*Layer, error) {
	l := &Layer{blobs: map[string]*blob{}}
	plain := &counter{w: sha256.New()}
	writers := []io.Writer{plain}
	for _, compression := range []string{Gzip, Zstd} {
		b, err := newBlob(dir, compression)
		if err != nil {
			return nil, err
		}
		l.blobs[compression] = b
		writers = append(writers, b.in)
	}
	entries, err := writeTar(io.MultiWriter(writers...), files)
	for _, b := range l.blobs {
		err = errors.Join(err, b.finish())
	}
	l.Entries, l.Plain, l.diffID = entries, plain.n, plain.digest()
	return l, err
}

// blob is a layer in one compression, in a file.
type blob struct {
	file   *os.File
	in     io.WriteCloser
	out    *counter
	path   string
	size   int64
	digest v1.Hash
}

func newBlob(dir, compression string) (*blob, error) {
	f, err := os.CreateTemp(dir, "blob-"+compression+"-")
	if err != nil {
		return nil, err
	}
	b := &blob{file: f, path: f.Name(), out: &counter{w: sha256.New()}}
	to := io.MultiWriter(f, b.out)
	if compression == Zstd {
		b.in, err = zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedDefault))
	} else {
		b.in = gzip.NewWriter(to)
	}
	return b, err
}

func (b *blob) finish() error {
	err := errors.Join(b.in.Close(), b.file.Close())
	b.size, b.digest = b.out.n, b.out.digest()
	return err
}

// counter counts and digests what is written.
type counter struct {
	w interface {
		io.Writer
		Sum([]byte) []byte
	}
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

func (c *counter) digest() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(c.w.Sum(nil))}
}

// Size is the bytes of the layer's blob.
func (l *Layer) Size(compression string) int64 { return l.blobs[compression].size }

// Image makes an OCI image for this machine's platform of layers in one compression.
func Image(compression string, layers ...*Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, packed{l, l.blobs[compression], compression}); err != nil {
			return nil, fmt.Errorf("append layer: %w", err)
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	cf = cf.DeepCopy()
	platform := fixture.HostPlatform()
	cf.OS, cf.Architecture, cf.Variant = platform.OS, platform.Architecture, platform.Variant
	return mutate.ConfigFile(img, cf)
}

// packed is a Layer as a library for registries wants it.
type packed struct {
	layer       *Layer
	blob        *blob
	compression string
}

func (p packed) Digest() (v1.Hash, error)           { return p.blob.digest, nil }
func (p packed) DiffID() (v1.Hash, error)           { return p.layer.diffID, nil }
func (p packed) Size() (int64, error)               { return p.blob.size, nil }
func (p packed) Compressed() (io.ReadCloser, error) { return os.Open(p.blob.path) }
func (p packed) MediaType() (types.MediaType, error) {
	if p.compression == Zstd {
		return types.OCILayerZStd, nil
	}
	return types.OCILayer, nil
}

func (p packed) Uncompressed() (io.ReadCloser, error) {
	return nil, errors.New("only the compressed layer is kept")
}
