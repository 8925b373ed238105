package spec

import (
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/userns"
)

// namespaces joins the pod's and makes the container's own. Network, IPC and UTS are the pod's to decide, so only their
// paths count.
func (b *build) namespaces() error {
	join := func(kind specs.LinuxNamespaceType, path string) {
		if path != "" {
			b.addNamespace(kind, path)
		}
	}
	b.addNamespace(specs.MountNamespace, "")
	join(specs.NetworkNamespace, b.Paths.NetNS)
	join(specs.IPCNamespace, b.Paths.IPCNS)
	join(specs.UTSNamespace, b.Paths.UTSNS)
	if err := b.pidNamespace(); err != nil {
		return err
	}
	// On v1, and for a privileged container, the host's cgroups stay in sight: tools of both kinds count on it. A user
	// namespace can mount only what is its own.
	if b.Host.CgroupV2 && (!b.privileged || b.Paths.UserNS != "") {
		b.addNamespace(specs.CgroupNamespace, "")
	}
	return b.userNamespace()
}

func (b *build) addNamespace(kind specs.LinuxNamespaceType, path string) {
	b.out.Linux.Namespaces = append(b.out.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
}

func (b *build) hasNamespace(kind specs.LinuxNamespaceType) bool { return hasNamespace(b.out, kind) }

func hasNamespace(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == kind })
}

func (b *build) pidNamespace() error {
	pod := b.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()
	mode := b.security.GetNamespaceOptions().GetPid()
	switch {
	case mode == runtimeapi.NamespaceMode_CONTAINER:
		b.addNamespace(specs.PIDNamespace, "")
	case mode == runtimeapi.NamespaceMode_TARGET && b.Paths.PidNS == "":
		return fmt.Errorf("PID namespace of target container %q: it is not running",
			b.security.GetNamespaceOptions().GetTargetId())
	case pod == runtimeapi.NamespaceMode_NODE && mode != runtimeapi.NamespaceMode_TARGET:
		// The pod is in the host's namespace: that is the pod's and the node's at once.
	case mode == runtimeapi.NamespaceMode_NODE:
		return errors.New("the container asks for the host's PID namespace and its pod does not: set pid to NODE in the " +
			"pod's namespace options too")
	case b.Paths.PidNS == "":
		return errors.New("the container asks to share its pod's PID namespace and the pod has none: it was made with " +
			"another pid mode")
	default:
		b.addNamespace(specs.PIDNamespace, b.Paths.PidNS)
	}
	return nil
}

// userNamespace states the mappings beside the path: runtimes need them to know which host id is root inside.
func (b *build) userNamespace() error {
	pod := b.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	ctr := b.security.GetNamespaceOptions().GetUsernsOptions()
	if ctr != nil && !sameUserns(pod, ctr) {
		return errors.New("the container's user namespace options differ from its pod's: a pod has one user namespace")
	}
	if b.Paths.UserNS == "" {
		return nil
	}
	ids := IDs(pod)
	if err := ids.Check(); err != nil {
		return fmt.Errorf("the pod's user namespace: %w", err)
	}
	for _, gid := range append([]uint32{b.User.GID}, b.User.AdditionalGids...) {
		if _, _, ok := ids.Host(b.User.UID, gid); !ok {
			return fmt.Errorf("user %d, group %d: the pod's user namespace does not have this user, or this group", b.User.UID,
				gid)
		}
	}
	b.addNamespace(specs.UserNamespace, b.Paths.UserNS)
	b.out.Linux.UIDMappings, b.out.Linux.GIDMappings = idMappings(pod.GetUids()), idMappings(pod.GetGids())
	return nil
}

// IDs is the mapping of a pod's user namespace.
func IDs(u *runtimeapi.UserNamespace) userns.Mapping {
	return userns.Mapping{UIDs: idRanges(u.GetUids()), GIDs: idRanges(u.GetGids())}
}

// MountIDs is the mapping that a mount asks for; its zero value where it asks for none.
func MountIDs(m *runtimeapi.Mount) userns.Mapping {
	return userns.Mapping{UIDs: idRanges(m.GetUidMappings()), GIDs: idRanges(m.GetGidMappings())}
}

func idRanges(in []*runtimeapi.IDMapping) []userns.Range {
	var out []userns.Range
	for _, m := range in {
		out = append(out, userns.Range{Inside: m.GetContainerId(), Host: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}

// sameUserns treats no options and the host's namespace alike.
func sameUserns(a, b *runtimeapi.UserNamespace) bool {
	if len(a.GetUids())+len(a.GetGids())+len(b.GetUids())+len(b.GetGids()) == 0 {
		return true
	}
	return proto.Equal(a, b)
}

func idMappings(in []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}
