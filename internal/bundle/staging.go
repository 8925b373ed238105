package bundle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/look"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/userns"
)

// stageMounts makes mounts of their own of those that ask for more than an OCI runtime is asked for, and of all in a
// pod with a user namespace: what runs in one cannot pass through a directory of the host's root, such as the
// kubelet's, to a volume.
func (c Container) stageMounts(ctx context.Context, mounts []spec.ResolvedMount) error {
	inUserNS := c.pod.ids().UserNS != ""
	for i := range mounts {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := &mounts[i]
		if m.Staged || !inUserNS && !m.NeedsStaging() {
			continue
		}
		if m.Mount.Propagation == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			continue // it cannot be had together, and is refused
		}
		at := filepath.Join(sandbox.StagedMounts(c.at, c.r.ID, c.ctr.ID), strconv.Itoa(i))
		strict, err := look.WithinAt(ctx, c.b.Volumes, m.Source, func() (strict []string, err error) {
			if err = c.stage(ctx, *m, at); err == nil && inUserNS {
				strict, err = rootfs.StrictOptions(at)
			}
			return strict, err
		})
		if err != nil {
			return fmt.Errorf("mount of %s: %w", m.Mount.ContainerPath, err)
		}
		m.Source, m.Staged, m.Strict = at, true, strict
	}
	return nil
}

func (c Container) stage(ctx context.Context, m spec.ResolvedMount, at string) error {
	o := rootfs.Staging{
		ReadOnly: m.Mount.RecursiveReadOnly, Options: m.Mount.MountOptions,
		Follow: m.Mount.Propagation == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	}
	want, own := spec.MountIDs(m.Mount), c.pod.ids()
	// an image is mounted with mapped ids already
	if len(want.UIDs)+len(want.GIDs) == 0 || m.Mount.Image != nil && own.UserNS != "" {
		return rootfs.Stage(ctx, m.Source, at, o)
	}
	if err := want.Check(); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "id mappings: %w", err)
	}
	if own.UserNS != "" && sameIDs(own.all, want) {
		o.IDs = own.IDMap
		return unmappable(rootfs.Stage(ctx, m.Source, at, o))
	}
	return unmappable(withUserns(c.b.Init, want, func(path string) error {
		o.IDs = rootfs.IDMap{UserNS: path}
		return rootfs.Stage(ctx, m.Source, at, o)
	}))
}

func sameIDs(a, b userns.Mapping) bool {
	return slices.Equal(a.UIDs, b.UIDs) && slices.Equal(a.GIDs, b.GIDs)
}

// withUserns runs f with a user namespace that is gone afterwards.
func withUserns(holder string, ids userns.Mapping, f func(path string) error) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // the holder dies with its thread
		defer goruntime.UnlockOSThread()
		h, err := userns.Hold(holder, 0, ids)
		if err != nil { // in text alone: no errno in it is of a disk
			done <- fail.New(errdefs.ErrUnavailable, "%s", err.Error())
			return
		}
		err = f(h.Path("user"))
		h.End()
		done <- err
	}()
	return <-done
}

// unmappable says that a volume, not the request, is why its ids cannot be mapped.
func unmappable(err error) error {
	var cannot *rootfs.NoIDMapError
	if errors.As(err, &cannot) {
		return fail.New(errdefs.ErrFailedPrecondition,
			"%w: put the volume on another file system, or give the pod no user namespace (hostUsers: true)", err)
	}
	return err
}
