package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/internal/rootfs"
)

// volumeFailed says that an image could not be mounted into a container, which a kubelet tells apart.
func volumeFailed(err error) error { return fail.New(crierrors.ErrImageVolumeMountFailed, "%w", err) }

// CheckImageMount refuses what no image can be mounted by. An image is read-only, and the caller has to know it.
func CheckImageMount(m *runtimeapi.Mount) error {
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

// MountVolumes mounts each image volume of the container below its run directory, read-only.
func (c Container) MountVolumes(img Images) error {
	for _, i := range img.places() {
		dir := c.at.ImageVolume(c.r.ID, c.ctr.ID, i)
		err := rootfs.Prepare(filepath.Join(dir, "over"), filepath.Join(dir, "mount"),
			rootfs.Options{Lower: img.volumes[i].Dirs, ReadOnly: true, IDs: c.pod.ids().IDMap,
				Label: c.b.Labels.of(c.r, c.ctr).Mount})
		if err != nil {
			return volumeFailed(fmt.Errorf("image %s: %w", img.volumes[i].ID, err))
		}
	}
	return nil
}

// UnmountVolumes takes away what MountVolumes has mounted.
func (c Container) UnmountVolumes() error {
	dir := c.at.ImageVolumes(c.r.ID, c.ctr.ID)
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
	return rootfs.Remove(dir)
}

// volumeSource is what of an image volume is mounted into the container: its root, or a directory or file below it. The
// volume is read-only, so what was found stays what it is.
func (c Container) volumeSource(i int, m *runtimeapi.Mount) (string, error) {
	root := filepath.Join(c.at.ImageVolume(c.r.ID, c.ctr.ID, i), "mount")
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
