package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/userns"
)

// validateUserns refuses user namespaces that no pod can have. One in the host's IPC or PID namespace has no power over
// it, and could not even mount its /proc.
func validateUserns(c *runtimeapi.PodSandboxConfig) error {
	u, ns := sandbox.UserNamespace(c), sandbox.Namespaces(c)
	if u == nil {
		return nil
	}
	if u.GetMode() != runtimeapi.NamespaceMode_POD {
		return fmt.Errorf("user namespace mode %s: only POD and NODE can be asked for", u.GetMode())
	}
	if err := spec.IDs(u).Check(); err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	if ns.GetIpc() == runtimeapi.NamespaceMode_NODE || ns.GetPid() == runtimeapi.NamespaceMode_NODE {
		return errors.New("a pod with a user namespace cannot use the host's IPC or PID namespace")
	}
	return nil
}

// podIDs is how a pod's ids are those of the host: as they are, where it has no user namespace.
type podIDs struct {
	rootfs.IDMap
	all userns.Mapping
}

func idsOf(p *pod, r *sandbox.Record) podIDs {
	ns := p.namespaces(r)
	uid, gid, _ := ns.IDs.Host(0, 0)
	return podIDs{rootfs.IDMap{UserNS: ns.User, UID: uid, GID: gid}, ns.IDs}
}

// owner is who the standard streams of a process belong to, as the host knows them, where that is not the runtime's to
// say: from inside a user namespace it cannot give away what is the host's.
func (i podIDs) owner(u spec.User) *runtime.Owner {
	uid, gid, ok := i.all.Host(u.UID, u.GID)
	if i.UserNS == "" || !ok {
		return nil
	}
	return &runtime.Owner{UID: int(uid), GID: int(gid)}
}

// give makes a file the pod's root's, where that is not the host's.
func (i podIDs) give(path string) error {
	if i.UserNS == "" {
		return nil
	}
	return os.Lchown(path, int(i.UID), int(i.GID))
}

// letPass lets the root of the pod's user namespace pass through directories, to what it is to mount. It cannot list
// them.
func (i podIDs) letPass(dirs ...string) error {
	if i.UserNS == "" {
		return nil
	}
	for _, dir := range dirs {
		if err := os.Lchown(dir, 0, int(i.GID)); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o710); err != nil {
			return err
		}
	}
	return nil
}

// stageMounts makes mounts of their own of those that ask for more than an OCI runtime is asked for, and of all in a
// pod with a user namespace: what runs in one cannot pass through a directory of the host's root, such as the
// kubelet's, to a volume.
func (b *building) stageMounts(
	ctx context.Context, r *sandbox.Record, ctr sandbox.ID, mounts []spec.ResolvedMount,
) error {
	inUserNS := idsOf(b.p, r).UserNS != ""
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
		at := filepath.Join(sandbox.StagedMounts(&b.cfg.Layout, b.p.id, ctr), strconv.Itoa(i))
		if err := b.stage(r, *m, at); err != nil {
			return fmt.Errorf("mount of %s: %w", m.Mount.ContainerPath, err)
		}
		m.Source, m.Staged = at, true
		if !inUserNS {
			continue
		}
		var err error
		if m.Strict, err = rootfs.StrictOptions(at); err != nil {
			return fmt.Errorf("mount of %s: %w", m.Mount.ContainerPath, err)
		}
	}
	return nil
}

func (b *building) stage(r *sandbox.Record, m spec.ResolvedMount, at string) error {
	o := rootfs.Staging{
		ReadOnly: m.Mount.RecursiveReadOnly, Options: m.Mount.MountOptions,
		Follow: m.Mount.Propagation == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	}
	want, own := spec.MountIDs(m.Mount), idsOf(b.p, r)
	// an image is mounted with mapped ids already
	if len(want.UIDs)+len(want.GIDs) == 0 || m.Mount.Image != nil && own.UserNS != "" {
		return rootfs.Stage(m.Source, at, o)
	}
	if err := want.Check(); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "id mappings: %w", err)
	}
	if own.UserNS != "" && sameIDs(own.all, want) {
		o.IDs = own.IDMap
		return unmappable(rootfs.Stage(m.Source, at, o))
	}
	return unmappable(withUserns(b.cfg.Init, want, func(path string) error {
		o.IDs = rootfs.IDMap{UserNS: path}
		return rootfs.Stage(m.Source, at, o)
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
		if err != nil { // in text alone: its ENOSPC is not of a disk
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
