package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/internal/rootfs"
	"berth/internal/spec"
)

// declaredVolumes makes the directories that the image declares as volumes (VOLUME) and need not hold. Where the root
// is read-only it returns those that stay writable: all but what a mount of the request covers, and what is not the
// root's.
func (c Container) declaredVolumes(
	ctx context.Context, root string, cfg *runtimeapi.ContainerConfig, declared map[string]struct{},
) ([]spec.Volume, error) {
	if len(declared) == 0 {
		return nil, nil
	}
	if err := limit.DeclaredVolumes.Check(int64(len(declared))); err != nil {
		return nil, err
	}
	volumes := slices.Sorted(maps.Keys(declared))
	for _, v := range volumes { // first: what the request's mounts cover may be among it, or be found through it
		if err := c.pod.makeInRoot(ctx, root, v); err != nil {
			return nil, fmt.Errorf("volume of the image: %w", err)
		}
	}
	if !cfg.GetLinux().GetSecurityContext().GetReadonlyRootfs() {
		return nil, nil
	}
	top, err := rootfs.Resolve(root, "/")
	if err != nil {
		return nil, err
	}
	inRoot := func(path string) (source, inside string, err error) {
		if source, err = rootfs.Resolve(root, path); err != nil {
			return "", "", err
		}
		return source, filepath.Join("/", strings.TrimPrefix(source, top)), nil
	}
	var covered []string
	for _, m := range cfg.Mounts {
		covered = append(covered, filepath.Clean("/"+m.ContainerPath))
		if _, inside, err := inRoot(m.ContainerPath); err == nil { // it need not be there
			covered = append(covered, inside)
		}
	}
	var out []spec.Volume
	for _, v := range volumes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		source, inside, err := inRoot(v)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is below /proc or /sys
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", v, err)
		}
		if writable := inside != "/" && !within(notOfRoot, inside) && !within(covered, inside); writable {
			out = append(out, spec.Volume{Path: inside, Source: source})
		}
	}
	return out, nil
}

// notOfRoot is where a container has file systems of the kernel.
var notOfRoot = []string{"/proc", "/sys", "/dev"}

// within reports whether a clean path is one of dirs or below it.
func within(dirs []string, path string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool {
		return path == d || d == "/" || strings.HasPrefix(path, d+"/")
	})
}

// makeInRoot makes a directory that an image promises but need not hold, such as the working directory. It is root's,
// as the container knows it.
func (p Pod) makeInRoot(ctx context.Context, root, dir string) error {
	dir, ids := filepath.Clean("/"+dir), p.ids()
	if dir == "/" || within(notOfRoot[:2], dir) {
		return nil
	}
	var err error
	if ids.UserNS != "" {
		err = rootfs.MkdirAllAs(ctx, root, dir, 0o755, ids.UID, ids.GID)
	} else {
		err = rootfs.MkdirAll(ctx, root, dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("make %s in the container's root: %w", dir, err)
	}
	return nil
}
