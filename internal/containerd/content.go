package containerd

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The bounds of what is read whole, and of what an index may lead to. The daemon has its own, which are what counts.
const (
	mostDocument  = 8 << 20
	mostManifests = 1000
	mostLayers    = 1000
	mostDepth     = 4
)

// Content is what an image for one platform consists of.
type Content struct {
	ID digest.Digest // of the image, which is that of its config
	// Manifest is the digest of the manifest, which is the id if the daemon finds it to be one of an OCI artifact.
	Manifest digest.Digest
	// Root is the manifest or index that the names lead to.
	Root      ocispec.Descriptor
	documents []ocispec.Descriptor // Root, and what leads from there to the config
	layers    []ocispec.Descriptor
}

// Names are those of the image, in full. Those by digest lead to what the image is taken by.
func (c *Content) Names(img *Image) []string {
	names := slices.Clone(img.Tags)
	for _, name := range img.Digests {
		repository, _, _ := strings.Cut(name, "@")
		names = append(names, repository+"@"+c.Root.Digest.String())
	}
	return names
}

// Size is how many bytes the content has.
func (c *Content) Size() (bytes int64) {
	for _, d := range append(c.documents, c.layers...) {
		bytes += d.Size
	}
	return bytes
}

// MissingError says that the root lacks a part of an image.
type MissingError struct {
	Layers int      // that the image has
	Blobs  []string // that are not there
	Layer  bool     // they are layers
}

// Error says why it may be so, too.
func (e *MissingError) Error() string {
	list := e.Blobs
	if more := len(list) - 3; more > 0 {
		list = append(list[:3:3], fmt.Sprintf("and %d more", more))
	}
	if e.Layer {
		return fmt.Sprintf("%d of its %d layers are not in the root (with discard_unpacked_layers containerd keeps "+
			"none): %s", len(e.Blobs), e.Layers, strings.Join(list, ", "))
	}
	return "its manifest or config is not in the root: " + strings.Join(list, ", ")
}

// errOtherPlatform says that the root has the image for other platforms alone.
var errOtherPlatform = errors.New("the root does not have it for this platform")

// Content finds what an image consists of for the platform of this machine, and proves all but the layers.
func (r *Root) Content(img *Image) (*Content, error) {
	f := finder{root: r, platform: platforms.Only(platforms.DefaultSpec())}
	c := &Content{Root: img.Target}
	if err := f.visit(c, img.Target, 0); err != nil {
		return nil, err
	}
	missing := &MissingError{Layers: len(c.layers), Layer: true}
	for _, l := range c.layers {
		switch err := r.has(l); {
		case errors.Is(err, fs.ErrNotExist):
			missing.Blobs = append(missing.Blobs, l.Digest.String())
		case err != nil:
			return nil, err
		}
	}
	if len(missing.Blobs) > 0 {
		return nil, missing
	}
	return c, nil
}

// finder walks from what a name leads to to the layers.
type finder struct {
	root     *Root
	platform platforms.MatchComparer
	visited  int
}

func (f *finder) visit(c *Content, desc ocispec.Descriptor, depth int) error {
	if f.visited++; f.visited > mostManifests || depth > mostDepth {
		return fmt.Errorf("its index leads to more than %d manifests, or more than %d indexes deep", mostManifests,
			mostDepth)
	}
	raw, err := f.root.document(desc)
	if err != nil {
		return err
	}
	var doc struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	c.documents = append(c.documents, desc)
	if doc.Config == nil {
		return f.index(c, doc.Manifests, depth)
	}
	if len(doc.Layers) > mostLayers {
		return fmt.Errorf("%s has %d layers; %d are the most", desc.Digest, len(doc.Layers), mostLayers)
	}
	c.ID, c.Manifest, c.layers = doc.Config.Digest, desc.Digest, doc.Layers
	_, err = f.root.document(*doc.Config)
	var missing *MissingError
	if doc.Config.Digest == ocispec.DescriptorEmptyJSON.Digest && errors.As(err, &missing) {
		return nil // it is {}, that of an artifact, which the daemon knows
	}
	c.documents = append(c.documents, *doc.Config)
	return err
}

// index goes on with what fits this machine best. Where the root lacks that, or the daemon may prefer another variant
// of amd64, the image is taken by the manifest that the root has, and the index is left out: the daemon would choose
// anew.
func (f *finder) index(c *Content, manifests []ocispec.Descriptor, depth int) error {
	fits := f.fitting(manifests)
	if len(fits) == 0 {
		return errOtherPlatform
	}
	amd64 := 0
	for _, m := range fits {
		if m.Platform != nil && m.Platform.Architecture == "amd64" {
			amd64++
		}
	}
	var first error
	if amd64 < 2 {
		whole := Content{Root: c.Root, documents: slices.Clone(c.documents)}
		if first = f.visit(&whole, fits[0], depth+1); first == nil {
			*c = whole
			return nil
		}
		fits = fits[1:]
	}
	for _, m := range fits {
		one := Content{Root: m}
		err := f.visit(&one, m, depth+1)
		if err == nil {
			*c = one
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

// fitting are the entries of an index that run here, the best first. Those that do not say what they are for count
// where there is nothing else.
func (f *finder) fitting(manifests []ocispec.Descriptor) []ocispec.Descriptor {
	var fits, unnamed []ocispec.Descriptor
	for _, m := range manifests {
		switch {
		case !images.IsManifestType(m.MediaType) && !images.IsIndexType(m.MediaType),
			m.Annotations["vnd.docker.reference.type"] != "":
		case m.Platform == nil || m.Platform.OS == "" && m.Platform.Architecture == "":
			unnamed = append(unnamed, m)
		case f.suits(*m.Platform):
			fits = append(fits, m)
		}
	}
	if len(fits) == 0 {
		return unnamed
	}
	slices.SortStableFunc(fits, func(a, b ocispec.Descriptor) int {
		switch {
		case f.platform.Less(*a.Platform, *b.Platform):
			return -1
		case f.platform.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	return fits
}

// suits reports whether a program for p runs here. Which variants of amd64 do the daemon knows, and not the library.
func (f *finder) suits(p ocispec.Platform) bool {
	p = platforms.Normalize(p)
	if p.Architecture == "amd64" {
		p.Variant = ""
	}
	return f.platform.Match(p)
}

// document reads a blob whole, and proves it.
func (r *Root) document(desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > mostDocument {
		return nil, fmt.Errorf("%s has %d bytes, and is no manifest or config", desc.Digest, desc.Size)
	}
	rc, err := r.blob(desc)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &MissingError{Blobs: []string{desc.Digest.String()}}
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = rc.Close() }()
	return io.ReadAll(rc)
}

// has reports whether a blob is there, with the size that was promised.
func (r *Root) has(desc ocispec.Descriptor) error {
	rc, err := r.blob(desc)
	if err == nil {
		err = rc.Close()
	}
	return err
}

// blob opens a blob. Its reader ends with an error where it is not what the digest promises.
func (r *Root) blob(desc ocispec.Descriptor) (io.ReadCloser, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %.100q: %w", desc.Digest, err)
	}
	f, err := r.open(blobsDir + "/" + desc.Digest.Algorithm().String() + "/" + desc.Digest.Encoded())
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != desc.Size {
		err = fmt.Errorf("%s is damaged: it has %d bytes, not %d", desc.Digest, info.Size(), desc.Size)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &proven{desc: desc, verifier: desc.Digest.Verifier(), in: f, left: desc.Size}, nil
}

// proven reads a blob and proves it at its end.
type proven struct {
	desc     ocispec.Descriptor
	verifier digest.Verifier
	in       io.ReadCloser
	left     int64
}

func (p *proven) Read(b []byte) (int, error) {
	if p.left == 0 {
		if !p.verifier.Verified() {
			return 0, fmt.Errorf("%s is damaged: it is not what its digest says", p.desc.Digest)
		}
		return 0, io.EOF
	}
	n, err := p.in.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(n)
	_, _ = p.verifier.Write(b[:n])
	if errors.Is(err, io.EOF) && p.left > 0 {
		return n, fmt.Errorf("%s is damaged: it is cut short", p.desc.Digest)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (p *proven) Close() error { return p.in.Close() }

// WriteArchive writes an image as a tar of an OCI layout in which it has these names. What it writes is an image only
// when it returns nil: a layer that is damaged is found at its end.
func (r *Root) WriteArchive(ctx context.Context, w io.Writer, c *Content, names []string) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, name := range names {
		desc := c.Root
		desc.Annotations = map[string]string{images.AnnotationImageName: name}
		index.Manifests = append(index.Manifests, desc)
	}
	tw := tar.NewWriter(w)
	for name, document := range map[string]any{
		"index.json": index, ocispec.ImageLayoutFile: ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion},
	} {
		raw, err := json.Marshal(document)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: int64(len(raw))}); err != nil {
			return err
		}
		if _, err := tw.Write(raw); err != nil {
			return err
		}
	}
	written := map[digest.Digest]bool{}
	for _, desc := range append(c.documents, c.layers...) {
		if written[desc.Digest] {
			continue
		}
		written[desc.Digest] = true
		if err := r.writeBlob(ctx, tw, desc); err != nil {
			return err
		}
	}
	return tw.Close()
}

func (r *Root) writeBlob(ctx context.Context, tw *tar.Writer, desc ocispec.Descriptor) error {
	rc, err := r.blob(desc)
	if err != nil {
		return err
	}
	defer func() { _ = rc.Close() }()
	name := "blobs/" + desc.Digest.Algorithm().String() + "/" + desc.Digest.Encoded()
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: desc.Size}); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for {
		n, err := rc.Read(buf)
		if _, wrong := tw.Write(buf[:n]); wrong != nil {
			return wrong
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}
