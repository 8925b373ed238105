package archive

import (
	"cmp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
)

// form knows what an archive consists of, and how its files are called.
type form interface {
	layerName(digest.Digest) string
	// image returns the files that make an image of layers, which are in the archive.
	image(x *Image, layers []ocispec.Descriptor) ([]memberFile, error)
	// end returns the files that list the images.
	end() ([]memberFile, error)
}

func newForm(format string, compress bool) (form, error) {
	switch format {
	case FormatOCI, "":
		return &layoutForm{saved: savedForm{config: blobName, layer: blobName}}, nil
	case FormatDocker:
		suffix := ".tar"
		if compress {
			suffix += ".gz"
		}
		return &savedForm{
			config: func(d digest.Digest) string { return d.Encoded() + ".json" },
			layer:  func(d digest.Digest) string { return d.Encoded() + suffix },
		}, nil
	}
	return nil, fail.New(errdefs.ErrInvalidArgument, "there is no format %q: it is %s or %s", format, FormatOCI,
		FormatDocker)
}

func blobName(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// savedForm is docker's manifest.json.
type savedForm struct {
	config, layer func(digest.Digest) string
	entries       []saveEntry
}

func (s *savedForm) layerName(d digest.Digest) string { return s.layer(d) }

func (s *savedForm) image(x *Image, layers []ocispec.Descriptor) ([]memberFile, error) {
	e := saveEntry{Config: s.config(x.ID), RepoTags: x.Tags, Layers: []string{}}
	for _, l := range layers {
		e.Layers = append(e.Layers, s.layer(l.Digest))
	}
	s.entries = append(s.entries, e)
	return []memberFile{{e.Config, x.Config}}, nil
}

func (s *savedForm) end() ([]memberFile, error) {
	raw, err := marshal(s.entries)
	return []memberFile{{"manifest.json", raw}}, err
}

// layoutForm is an OCI image layout that docker can read too.
type layoutForm struct {
	saved savedForm
	index []ocispec.Descriptor
}

func (l *layoutForm) layerName(d digest.Digest) string { return blobName(d) }

func (l *layoutForm) image(x *Image, layers []ocispec.Descriptor) ([]memberFile, error) {
	if x.Artifact != nil {
		return l.artifact(x), nil
	}
	files, err := l.saved.image(x, layers)
	if err != nil {
		return nil, err
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: layers,
		Config: ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageConfig, Digest: x.ID, Size: int64(len(x.Config)),
		},
	}
	if m.Layers == nil {
		m.Layers = []ocispec.Descriptor{}
	}
	raw, err := marshal(m)
	if err != nil {
		return nil, err
	}
	desc := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	if x.Platform.OS != "" && x.Platform.Architecture != "" {
		desc.Platform = &x.Platform
	}
	l.list(desc, x.Tags)
	return append(files, memberFile{blobName(desc.Digest), raw}), nil
}

// artifact returns the files of an artifact. Docker's list has none of it: docker cannot load it.
func (l *layoutForm) artifact(x *Image) []memberFile {
	m := x.Artifact.Manifest
	l.list(ocispec.Descriptor{
		MediaType: cmp.Or(m.MediaType, ocispec.MediaTypeImageManifest), Digest: x.ID, Size: int64(len(x.Config)),
		ArtifactType: m.ArtifactType,
	}, x.Tags)
	return []memberFile{{blobName(m.Config.Digest), x.Artifact.Config}, {blobName(x.ID), x.Config}}
}

// list enters a manifest into the index, once for each tag as the layout's readers expect.
func (l *layoutForm) list(desc ocispec.Descriptor, tags []string) {
	if len(tags) == 0 {
		l.index = append(l.index, desc)
	}
	for _, tag := range tags {
		named := desc
		named.Annotations = map[string]string{"io.containerd.image.name": tag, ocispec.AnnotationRefName: bareTag(tag)}
		l.index = append(l.index, named)
	}
}

// bareTag is the tag without the name that it is a tag of.
func bareTag(name string) string {
	if ref, err := reference.ParseNormalizedNamed(name); err == nil {
		if t, ok := ref.(reference.Tagged); ok {
			return t.Tag()
		}
	}
	return name[strings.LastIndexByte(name, ':')+1:]
}

func (l *layoutForm) end() ([]memberFile, error) {
	version, err := marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return nil, err
	}
	index, err := marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: l.index,
	})
	if err != nil {
		return nil, err
	}
	var saved []memberFile
	if len(l.saved.entries) > 0 && err == nil { // there are none of artifacts
		saved, err = l.saved.end()
	}
	return append([]memberFile{{ocispec.ImageLayoutFile, version}, {"index.json", index}}, saved...), err
}
