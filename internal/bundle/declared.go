package bundle

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/internal/look"
	"berth/internal/rootfs"
	"berth/internal/spec"
)

// declaredVolumes makes the directories that the image declares as volumes (VOLUME) and need not hold. What a mount of
// the request covers, by whatever name, is the request's: nothing is made there, since the mount may be of a file.
// Where the root is read-only it returns those that stay writable: all but these, and what is not the root's.
func (c Container) declaredVolumes(
	ctx context.Context, root string, cfg *runtimeapi.ContainerConfig, declared map[string]struct{},
) (out []spec.Volume, err error) {
	if len(declared) == 0 {
		return nil, nil
	}
	if err := limit.DeclaredVolumes.Check(int64(len(declared))); err != nil {
		return nil, err
	}
	top, err := rootfs.Resolve(root, "/")
	if err != nil {
		return nil, err
	}
	var covered []string
	for _, m := range cfg.Mounts {
		covered = append(covered, filepath.Clean("/"+m.ContainerPath))
		if at, err := rootfs.Place(root, m.ContainerPath); err == nil {
			covered = append(covered, at)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(declared)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if within(covered, filepath.Clean("/"+v)) {
			continue
		}
		at, err := rootfs.Place(root, v)
		if err == nil && within(covered, at) {
			continue
		}
		if err == nil {
			err = c.pod.makeInRoot(ctx, root, at)
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", v, err)
		}
		if cfg.GetLinux().GetSecurityContext().GetReadonlyRootfs() && at != "/" && !within(notOfRoot, at) {
			out = append(out, spec.Volume{Path: at, Source: filepath.Join(top, at)})
		}
	}
	return out, nil
}

// makeMountPoints makes the directories of the root to which links of the image lead on the way to where the request
// mounts something, and which are not there: crun mounts nothing there, while runc makes them.
func (c Container) makeMountPoints(ctx context.Context, root string, mounts []spec.ResolvedMount) error {
	for _, m := range mounts {
		if err := ctx.Err(); err != nil {
			return err
		}
		at, err := rootfs.Place(root, m.Mount.ContainerPath)
		if err != nil || at == filepath.Clean(m.Mount.ContainerPath) {
			continue // without links, or for the runtime to refuse
		}
		info, err := look.WithinAt(ctx, c.b.Volumes, m.Source, func() (fs.FileInfo, error) { return os.Stat(m.Source) })
		if err == nil && !info.IsDir() {
			at = filepath.Dir(at)
		}
		if err == nil {
			err = c.pod.makeInRoot(ctx, root, at)
		}
		if err != nil {
			return fmt.Errorf("mount of %s: %w", m.Mount.ContainerPath, err)
		}
	}
	return nil
}

// notOfRoot is where a container has file systems of the kernel.
var notOfRoot = []string{"/proc", "/sys", "/dev"}

// within reports whether a clean path is one of dirs or below it.
func within(dirs []string, path string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool {
		return path == d || d == "/" || strings.HasPrefix(path, d+"/")
	})
}

// makeInRoot makes a directory that an image promises but need not hold, such as the working directory, at a place that
// rootfs.Place has found. It is root's, as the container knows it.
func (p Pod) makeInRoot(ctx context.Context, root, at string) (err error) {
	if at == "/" || within(notOfRoot[:2], at) {
		return nil
	}
	if ids := p.ids(); ids.UserNS != "" {
		err = rootfs.MkdirAllAs(ctx, root, at, 0o755, ids.UID, ids.GID)
	} else {
		err = rootfs.MkdirAll(ctx, root, at, 0o755)
	}
	if err != nil {
		return fmt.Errorf("make %s in the container's root: %w", at, err)
	}
	return nil
}

// makeWorkingDir makes the directory in which the first process starts. A link that leads nowhere is followed: what it
// leads to may be on a volume of the pod, which hides what is made here, and else is made as under other runtimes.
func (p Pod) makeWorkingDir(ctx context.Context, root, dir string) error {
	at, err := rootfs.Place(root, dir)
	if err == nil {
		err = p.makeInRoot(ctx, root, at)
	}
	if err != nil {
		return fmt.Errorf("working directory %s: %w", dir, err)
	}
	return nil
}
