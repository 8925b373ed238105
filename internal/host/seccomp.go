package host

import (
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// DefaultSeccomp is the filter, on this machine, of a container with these capabilities whose pod asks for the runtime's
// default profile: containerd's.
func DefaultSeccomp(caps []string) *specs.LinuxSeccomp {
	process := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}
	return seccomp.DefaultProfile(&specs.Spec{Process: process})
}
