package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// volumeFailed says that an image could not be mounted into a container, which a kubelet tells apart.
func volumeFailed(err error) error { return fail.New(crierrors.ErrImageVolumeMountFailed, "%w", err) }

// material is the images that a container is made from: its own, and those that it mounts, by the place of the mount
// among the request's mounts.
type material struct {
	Image
	volumes map[int]Image
}

// layers is every layer of the material once, the root's first.
func (m material) layers() []string {
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

// confirm asks whether pods of the namespace may run these images.
func (m material) confirm(ctx context.Context, namespace string) error {
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
func (m material) places() []int {
	var all []int
	for i := range m.volumes {
		all = append(all, i)
	}
	slices.Sort(all)
	return all
}

// record is what the container's record says of its image volumes.
func (m material) record() []sandbox.ImageVolume {
	var out []sandbox.ImageVolume
	for _, i := range m.places() {
		out = append(out, sandbox.ImageVolume{Mount: i, Image: m.volumes[i].ID})
	}
	return out
}

// use finds the images of a request and keeps their layers from being swept until release is called.
func (s *Pods) use(cfg *runtimeapi.ContainerConfig) (m material, release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	name := cfg.Metadata.Name
	img, free, err := s.cfg.Images.Use(cfg.Image)
	if err != nil {
		return m, release, fmt.Errorf("container %s: image %q: %w", name, cfg.Image.Image, err)
	}
	m.Image, held = img, append(held, free)
	for i, v := range cfg.Mounts {
		if v.Image == nil {
			continue
		}
		img, free, err := s.cfg.Images.Use(v.Image)
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

// validateImageMount refuses what no image can be mounted by. An image is read-only, and the caller has to know it.
func validateImageMount(m *runtimeapi.Mount) error {
	why := ""
	switch sub := m.ImageSubPath; {
	case m.Image == nil && sub == "":
		return nil
	case m.Image == nil:
		why = fmt.Sprintf("image_sub_path %q without an image", sub)
	case m.Image.Image == "":
		why = "its image has no name"
	case m.HostPath != "":
		why = fmt.Sprintf("host_path %q and image %q: only one of them can be the source", m.HostPath, m.Image.Image)
	case !m.Readonly:
		why = fmt.Sprintf("image %q: an image is mounted read-only, so readonly must be set", m.Image.Image)
	case m.Propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		why = fmt.Sprintf("image %q: an image is mounted with private propagation", m.Image.Image)
	case sub != "" && !filepath.IsLocal(sub):
		why = fmt.Sprintf("image_sub_path %q leaves the image", sub)
	default:
		return nil
	}
	return volumeFailed(fail.New(errdefs.ErrInvalidArgument, "mount at %s: %s", m.ContainerPath, why))
}

// mountVolumes mounts each image volume of the container below its run directory, read-only.
func (b *building) mountVolumes(c *sandbox.Container) error {
	r := b.p.rec.Load()
	for _, i := range b.img.places() {
		dir := b.cfg.ImageVolume(b.p.id, c.ID, i)
		err := rootfs.Prepare(filepath.Join(dir, "over"), filepath.Join(dir, "mount"),
			rootfs.Options{Lower: b.img.volumes[i].Dirs, ReadOnly: true, IDs: idsOf(b.p, r).IDMap,
				Label: b.cfg.labels(r, c).Mount})
		if err != nil {
			return volumeFailed(fmt.Errorf("image %s: %w", b.img.volumes[i].ID, err))
		}
	}
	return nil
}

// unmountVolumes takes away what mountVolumes has mounted; nil when there is nothing.
func (l *container) unmountVolumes(context.Context) error {
	dir := l.cfg.ImageVolumes(l.p.id, l.id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := rootfs.Unmount(filepath.Join(dir, e.Name(), "mount")); err != nil {
			return err
		}
	}
	return removeDir(dir)
}

// volumeSource is what of an image volume is mounted into the container: its root, or a directory or file below it. The
// volume is read-only, so what was found stays what it is.
func (b *building) volumeSource(ctr sandbox.ID, i int, m *runtimeapi.Mount) (string, error) {
	root := filepath.Join(b.cfg.ImageVolume(b.p.id, ctr, i), "mount")
	if m.ImageSubPath == "" {
		return root, nil
	}
	src, err := rootfs.Resolve(root, m.ImageSubPath)
	if errors.Is(err, fs.ErrNotExist) {
		err = fail.New(errdefs.ErrNotFound, "image_sub_path %q does not exist in image %q", m.ImageSubPath, m.Image.Image)
	} else if err == nil {
		err = mountable(src)
	}
	if err != nil {
		return "", volumeFailed(fmt.Errorf("mount at %s: %w", m.ContainerPath, err))
	}
	return src, nil
}

// mountable refuses a device, socket or FIFO of an image as a volume.
func mountable(src string) error {
	info, err := os.Lstat(src)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return fail.New(errdefs.ErrInvalidArgument, "%s is neither a directory nor a regular file", filepath.Base(src))
	}
	return nil
}
