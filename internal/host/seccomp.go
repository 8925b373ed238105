package host

import (
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// openFamilies are the socket families that containers may use: by the default filter, where the kernel shows a filter
// the family, and by the default AppArmor profile, which knows them by name. The first five are what programs use, the
// others are of use with a capability or an interface that a pod is given. All that are not here are closed: most have
// a kernel module that anybody's socket(2) would load, AF_ALG reaches the kernel's cryptography, and AF_VSOCK the
// hypervisor.
var openFamilies = []struct {
	name   string
	number uint64
}{
	{"unix", unix.AF_UNIX}, {"inet", unix.AF_INET}, {"inet6", unix.AF_INET6}, {"netlink", unix.AF_NETLINK},
	{"packet", unix.AF_PACKET}, {"key", unix.AF_KEY}, {"pppox", unix.AF_PPPOX}, {"can", unix.AF_CAN},
	{"bluetooth", unix.AF_BLUETOOTH}, {"xdp", unix.AF_XDP},
}

// SocketFamilies are the names of the families that containers may use, as AppArmor has them.
func SocketFamilies() (names []string) {
	for _, f := range openFamilies {
		names = append(names, f.name)
	}
	return names
}

// DefaultSeccomp is the filter, on this machine, of a container with these capabilities whose pod asks for the
// runtime's default profile: containerd's, with our own list of socket families.
func DefaultSeccomp(caps []string) *specs.LinuxSeccomp {
	process := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}
	filter := seccomp.DefaultProfile(&specs.Spec{Process: process})
	opens := []string{"socket", "socketpair"}
	for i, r := range filter.Syscalls {
		filter.Syscalls[i].Names = slices.DeleteFunc(r.Names, func(name string) bool { return slices.Contains(opens, name) })
	}
	filter.Syscalls = slices.DeleteFunc(filter.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Names) == 0 })
	for _, f := range openFamilies {
		filter.Syscalls = append(filter.Syscalls, specs.LinuxSyscall{
			Names: opens, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: f.number, Op: specs.OpEqualTo}},
		})
	}
	return filter
}
