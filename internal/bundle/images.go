package bundle

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// ImageSource finds an image. Its layers stay until release is called; by then the container's record names them.
type ImageSource interface {
	Use(asked *runtimeapi.ImageSpec) (img Image, release func(), err error)
}

// Image is what a container is made from.
type Image struct {
	ID     string
	Ref    string // repository@digest by the name that was asked for, or the id where it has none
	Config imagespec.ImageConfig
	// Artifact is the type of an OCI artifact, which can be mounted but not run; empty for an image.
	Artifact string
	Layers   []string // their ids, for the record: a sweep of images keeps what records name
	Dirs     []string // the layers' directories, the topmost first
	// Confirm asks those who may refuse an image whether pods of a namespace may run this one, which was there already;
	// nil where there are no plugins.
	Confirm func(ctx context.Context, namespace string) error
}

// Images are those that a container is made from: its own, and those that it mounts, by the place of the mount among
// the request's mounts.
type Images struct {
	Image
	volumes map[int]Image
}

// AllLayers is the id of every layer of the images once, the root's first.
func (m Images) AllLayers() []string {
	all, seen := slices.Clone(m.Layers), map[string]bool{}
	for _, l := range all {
		seen[l] = true
	}
	for _, i := range m.places() {
		for _, l := range m.volumes[i].Layers {
			if !seen[l] {
				all, seen[l] = append(all, l), true
			}
		}
	}
	return all
}

// ConfirmAll asks whether pods of the namespace may run these images.
func (m Images) ConfirmAll(ctx context.Context, namespace string) error {
	if m.Confirm != nil {
		if err := m.Confirm(ctx, namespace); err != nil {
			return fmt.Errorf("image %s: %w", m.Ref, err)
		}
	}
	for _, i := range m.places() {
		if v := m.volumes[i]; v.Confirm != nil {
			if err := v.Confirm(ctx, namespace); err != nil {
				return fmt.Errorf("image volume %s: %w", v.Ref, err)
			}
		}
	}
	return nil
}

// places is where among the mounts the image volumes are.
func (m Images) places() []int {
	var all []int
	for i := range m.volumes {
		all = append(all, i)
	}
	slices.Sort(all)
	return all
}

// Record is what the container's record says of its image volumes.
func (m Images) Record() []sandbox.ImageVolume {
	var out []sandbox.ImageVolume
	for _, i := range m.places() {
		out = append(out, sandbox.ImageVolume{Mount: i, Image: m.volumes[i].ID})
	}
	return out
}

// Use finds the images of a request and keeps their layers from being swept until release is called.
func (b *Builder) Use(cfg *runtimeapi.ContainerConfig) (m Images, release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	name := cfg.Metadata.Name
	img, free, err := b.Images.Use(cfg.Image)
	if err != nil {
		return m, release, fmt.Errorf("container %s: image %q: %w", name, cfg.Image.Image, err)
	}
	if img.Artifact != "" {
		free()
		return m, release, fail.New(errdefs.ErrFailedPrecondition, "container %s: image %q is an OCI artifact of type "+
			"%.200q: it holds files and nothing that could be run; mount it as an image volume",
			name, cfg.Image.Image, img.Artifact)
	}
	m.Image, held = img, append(held, free)
	for i, v := range cfg.Mounts {
		if v.Image == nil {
			continue
		}
		img, free, err := b.Images.Use(v.Image)
		if err != nil {
			release()
			err = fmt.Errorf("container %s: mount at %s: image %q: %w", name, v.ContainerPath, v.Image.Image, err)
			return m, func() {}, volumeFailed(err)
		}
		if m.volumes == nil {
			m.volumes = map[int]Image{}
		}
		m.volumes[i], held = img, append(held, free)
	}
	return m, release, nil
}
