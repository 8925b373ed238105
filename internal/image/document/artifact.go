package document

import (
	"cmp"
	"encoding/json"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Artifact is what an OCI artifact has beyond an image. It holds files to be mounted, and nothing to run.
type Artifact struct {
	Type      string // of what it is: a model, a chart, a policy
	RawConfig []byte // of any media type; often only {}
	Parts     []Part // one for each layer
}

// Part is what becomes of one layer of an artifact. The zero value is a tar that is unpacked, as the layers of images
// are.
type Part struct {
	Path string // of the one file that is the blob, clean and relative
	// MayBeTar says that the blob is unpacked if it turns out to be a tar: ORAS gives files the media type of a tar
	// unless it is told another.
	MayBeTar bool
}

// IsArtifact reports whether a manifest is one of an artifact, not of a container image: its config is none of an
// image, or it says so itself and has layers that no image has.
func IsArtifact(m *ocispec.Manifest) bool {
	if !hasImageConfig(m) {
		return m.Config.MediaType != "" || m.ArtifactType != ""
	}
	other := func(l ocispec.Descriptor) bool { return !images.IsLayerType(l.MediaType) }
	return m.ArtifactType != "" && slices.ContainsFunc(m.Layers, other)
}

// hasImageConfig reports whether the config of a manifest is one of an image. Docker before 1.10.3 pushed it without a
// type of its own (https://github.com/docker/distribution/issues/1622), beside layers that have Docker's.
func hasImageConfig(m *ocispec.Manifest) bool {
	if m.Config.MediaType == "application/octet-stream" && m.ArtifactType == "" && m.Subject == nil {
		return len(m.Layers) > 0 && !slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
			return !strings.HasPrefix(l.MediaType, "application/vnd.docker.image.rootfs.") || !images.IsLayerType(l.MediaType)
		})
	}
	return images.IsConfigType(m.Config.MediaType)
}

// TypeOf names what an artifact is.
func TypeOf(m *ocispec.Manifest) string { return cmp.Or(m.ArtifactType, m.Config.MediaType) }

// DecodeArtifact reads the type of an artifact from its manifest, which was judged before.
func DecodeArtifact(raw []byte) (kind string, err error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", err
	}
	return TypeOf(&m), nil
}

// NoConfig refuses the manifest of an artifact that would say something as the config of an image, too. A release that
// knows no artifacts reads it as one.
func NoConfig(raw []byte) error {
	img, err := DecodeConfig(raw)
	if err != nil || !reflect.DeepEqual(img.Config, ocispec.ImageConfig{}) ||
		!reflect.DeepEqual(img.RootFS, ocispec.RootFS{}) {
		return fail.New(errdefs.ErrFailedPrecondition, "its manifest has what belongs into the config of an image: it could "+
			"be taken for one")
	}
	return nil
}

// The annotations of layers that say what their file is called, the first that is there, and the one by which ORAS
// marks the tar of a directory.
var (
	titles     = []string{ocispec.AnnotationTitle, "org.cncf.model.filepath"}
	unpackThis = "io.deis.oras.content.unpack"
)

// PartsOf says what becomes of the layers of an artifact. It refuses names that lead out of a volume, that would do
// more than name a file, or that would leave it to the reader which file is meant.
func PartsOf(m *ocispec.Manifest) ([]Part, error) {
	if len(m.Layers) == 0 {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "it is an artifact of type %q without layers: there is "+
			"nothing to mount", TypeOf(m))
	}
	parts := make([]Part, len(m.Layers))
	var all names
	for i, l := range m.Layers {
		title := titleOf(l)
		if images.IsLayerType(l.MediaType) && !mayBeFile(l, title) {
			continue
		}
		file, why := fileName(cmp.Or(title, l.Digest.Encoded()))
		if why == "" {
			why = all.add(file)
		}
		if why != "" {
			return nil, fail.New(errdefs.ErrFailedPrecondition, "layer %s of the artifact is called %.300q: %s", l.Digest, title,
				why)
		}
		parts[i] = Part{Path: file, MayBeTar: images.IsLayerType(l.MediaType)}
	}
	return parts, nil
}

func titleOf(l ocispec.Descriptor) string {
	for _, key := range titles {
		if title := l.Annotations[key]; title != "" {
			return title
		}
	}
	return ""
}

// mayBeFile reports whether a layer that has the media type of a plain tar is perhaps a file.
func mayBeFile(l ocispec.Descriptor, title string) bool {
	plain := l.MediaType == ocispec.MediaTypeImageLayer || l.MediaType == images.MediaTypeDockerSchema2Layer
	return plain && title != "" && l.Annotations[unpackThis] != "true"
}

// fileName turns the title of a layer into the path of a file. why says what is wrong with it.
func fileName(title string) (file, why string) {
	if strings.ContainsFunc(title, unicode.IsControl) {
		return "", "control characters are in it"
	}
	if strings.HasPrefix(title, "/") {
		return "", "it is an absolute path"
	}
	parts := strings.Split(title, "/") // each is an entry of the tar around the file
	if err := limit.TitleDepth.Check(int64(len(parts))); err != nil {
		return "", err.Error()
	}
	for _, name := range parts {
		switch {
		case name == "..":
			return "", "it leads out of the volume"
		case strings.HasPrefix(name, ".wh."):
			return "", "names that begin with .wh. delete files of the layers below"
		case len(name) > maxName:
			return "", "a name in it is longer than 255 bytes"
		}
	}
	file = path.Clean(title)
	if file == "." {
		return "", "it names no file"
	}
	if err := limit.LayerPath.Check(int64(len(file))); err != nil {
		return "", "its path is longer than 4095 bytes"
	}
	return file, ""
}

// maxName is the longest name that Linux gives a file.
const maxName = 255

// names are the paths of an artifact's files.
type names struct {
	files, dirs map[string]struct{}
}

// add notes one more file. why says that another one stands in its way.
func (n *names) add(file string) (why string) {
	if n.files == nil {
		n.files, n.dirs = map[string]struct{}{}, map[string]struct{}{}
	}
	if _, twice := n.files[file]; twice {
		return "another layer is called the same"
	}
	if _, dir := n.dirs[file]; dir {
		return "another layer has it as a directory"
	}
	n.files[file] = struct{}{}
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, is := n.files[dir]; is {
			return "another layer has a directory of it as a file"
		}
		n.dirs[dir] = struct{}{}
	}
	return ""
}
