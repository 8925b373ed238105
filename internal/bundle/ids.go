package bundle

import (
	"errors"
	"fmt"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/userns"
)

// CheckUserNamespace refuses user namespaces that no pod can have. One in the host's IPC or PID namespace has no power
// over it, and could not even mount its /proc.
func CheckUserNamespace(c *runtimeapi.PodSandboxConfig) error {
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

func (p Pod) ids() podIDs {
	ns := p.Namespaces()
	uid, gid, _ := ns.IDs.Host(0, 0)
	return podIDs{rootfs.IDMap{UserNS: ns.User, UID: uid, GID: gid}, ns.IDs}
}

// owner returns the owner of a process's standard streams, in the ids of the host, where the runtime cannot set it:
// inside a user namespace it cannot change the owner of the host's files.
func (i podIDs) owner(u spec.User) *runtime.Owner {
	uid, gid, ok := i.all.Host(u.UID, u.GID)
	if i.UserNS == "" || !ok {
		return nil
	}
	return &runtime.Owner{UID: int(uid), GID: int(gid)}
}

// give makes the pod's root the owner of a file, where that is not the host's.
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
