package spec

import (
	"errors"
	"reflect"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/fail"
)

// writableCgroup reports whether the handler gives this container a writable /sys/fs/cgroup. A privileged container has
// one anyway.
func (in Input) writableCgroup() bool {
	return in.Handler.CgroupWritable && !in.Container.GetLinux().GetSecurityContext().GetPrivileged()
}

// limitsCanBeRaised reports whether a container with a writable /sys/fs/cgroup could raise its own limits by a cgroup
// namespace of its own making.
//
// They are in files of its own cgroup, which is the root of its cgroup namespace. With nsdelegate the kernel keeps a
// process from writing these, but it compares the cgroup with the root of the process's namespace alone: a process that
// makes another cgroup namespace, further down, writes them all the same. In a user namespace of the pod the owner of
// the files, the host's root, keeps it from that. Elsewhere a seccomp filter has to keep it from making that namespace.
func limitsCanBeRaised(s *specs.Spec, in Input) bool {
	pods := specs.LinuxNamespace{Type: specs.UserNamespace, Path: in.Paths.UserNS}
	if pods.Path != "" && slices.Contains(s.Linux.Namespaces, pods) {
		return false
	}
	return !refusesCgroupNamespaces(s.Linux.Seccomp, in.Host.arch())
}

// delegation refuses a writable /sys/fs/cgroup where the container could raise its own limits by it.
func (b *build) delegation() error {
	if !b.writableCgroup() {
		return nil
	}
	const has = "the runtime handler has cgroup_writable"
	switch {
	case !b.Host.CgroupV2:
		return fail.New(errdefs.ErrFailedPrecondition, "%s, which needs cgroup v2", has)
	case !b.Delegated:
		return fail.New(errdefs.ErrFailedPrecondition,
			"%s, and the host's /sys/fs/cgroup is mounted without nsdelegate, so the container could raise "+
				"its own limits: run mount -o remount,nsdelegate /sys/fs/cgroup on the node", has)
	case limitsCanBeRaised(b.out, b.Input):
		return errors.New(has + ", and the container could raise its own limits by a cgroup namespace of its own making: " +
			"give the pod a user namespace (hostUsers: false), or the container the seccomp profile RuntimeDefault " +
			"without the capability SYS_ADMIN")
	}
	return nil
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroupMount shows a container its cgroups: in a new mount, or in the host's own.
func cgroupMount(host bool, access string) specs.Mount {
	m := specs.Mount{Destination: cgroupRoot, Type: "cgroup", Source: "cgroup",
		Options: []string{"nosuid", "noexec", "nodev", "relatime", access}}
	if host {
		m.Type, m.Source, m.Options = "bind", cgroupRoot, append([]string{"rbind", "rprivate"}, m.Options...)
	}
	return m
}

// PutCgroups has the mount of the cgroups be the one for the cgroup namespace that the spec has, or has not, and
// refuses a writable one that the container could raise its own limits by. Build has done so; NRI plugins may have
// changed the namespaces and the filter since.
//
// Without a namespace the cgroups are the host's, and on cgroup v2 a new mount of them sets the options of the whole
// hierarchy anew (cgroup-v2.rst, Mounting). crun passes none, so that the node would lose nsdelegate and
// memory_recursiveprot. The host's own mount is bound in its place, but for a sandbox that stands for the pod, which
// has a kernel and cgroups of its own.
func PutCgroups(s *specs.Spec, in Input) error {
	if in.writableCgroup() && limitsCanBeRaised(s, in) {
		return fail.New(errdefs.ErrFailedPrecondition, "the runtime handler has cgroup_writable, and an NRI plugin has "+
			"changed the container's seccomp filter or user namespace, so that it could raise its own limits by a cgroup "+
			"namespace of its own making: have the plugin leave these as they are, or the filter refuse unshare, clone3, "+
			"and clone with CLONE_NEWCGROUP")
	}
	host := in.Host.CgroupV2 && !in.Handler.Infra && !hasNamespace(s, specs.CgroupNamespace)
	for i, m := range s.Mounts {
		for _, access := range []string{"ro", "rw"} {
			if !reflect.DeepEqual(m, cgroupMount(!host, access)) {
				continue
			}
			if host && access == "rw" && !in.Container.GetLinux().GetSecurityContext().GetPrivileged() {
				return fail.New(errdefs.ErrFailedPrecondition, "the runtime handler has cgroup_writable, and an NRI plugin "+
					"has taken the cgroup namespace from the container, which could write to the cgroups of the "+
					"whole node")
			}
			s.Mounts[i] = cgroupMount(host, access)
		}
	}
	return nil
}

// newCgroup is CLONE_NEWCGROUP: the flag of clone by which a process gets a cgroup namespace of its own.
const newCgroup = 0x02000000

// denials are the actions of a filter after which a call is not made.
var denials = []specs.LinuxSeccompAction{
	specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap,
}

// refusesCgroupNamespaces says that no call which makes a namespace of cgroups passes a filter. Only filters that deny
// by default are judged; of the others none counts.
func refusesCgroupNamespaces(f *specs.LinuxSeccomp, arch string) bool {
	if f == nil || !slices.Contains(denials, f.DefaultAction) {
		return false
	}
	return !slices.ContainsFunc(f.Syscalls, func(rule specs.LinuxSyscall) bool {
		switch {
		case slices.Contains(denials, rule.Action):
			return false
		case slices.Contains(rule.Names, "unshare"), slices.Contains(rule.Names, "clone3"):
			return true
		}
		return slices.Contains(rule.Names, "clone") && !slices.ContainsFunc(rule.Args, func(a specs.LinuxSeccompArg) bool {
			return withoutCgroupNamespace(a, arch)
		})
	})
}

// withoutCgroupNamespace says that a condition on clone wants newCgroup to be absent from the flags.
func withoutCgroupNamespace(a specs.LinuxSeccompArg, arch string) bool {
	flags := uint(0)
	if arch == "s390x" {
		flags = 1 // there the stack comes first
	}
	return a.Index == flags && a.Op == specs.OpMaskedEqual && a.Value&newCgroup != 0 && a.ValueTwo&newCgroup == 0
}
