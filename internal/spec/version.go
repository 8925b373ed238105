package spec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Version is what ociVersion should say of s after something was added to what Build has made.
func Version(s *specs.Spec) string { return LowestVersion(s) }

// LowestVersion is the oldest version of the OCI spec that has all that s uses. A runtime may refuse a version newer
// than itself (crun 1.8 refuses 1.2) though it would understand every line of what it was given.
func LowestVersion(s *specs.Spec) string {
	if len(s.Linux.NetDevices) > 0 {
		return "1.3.0"
	}
	if newMountFeatures(s.Mounts) || newSeccompFeatures(s.Linux.Seccomp) {
		return "1.1.0"
	}
	return "1.0.2"
}

// newMountFeatures are the recursive attributes and id-mapped mounts of 1.1.
func newMountFeatures(mounts []specs.Mount) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return slices.Contains(m.Options, "rro") || len(m.UIDMappings)+len(m.GIDMappings) > 0
	})
}

// newSeccompFeatures are the default errno and notification of 1.1.
func newSeccompFeatures(s *specs.LinuxSeccomp) bool {
	return s != nil &&
		(s.DefaultErrnoRet != nil || s.ListenerPath != "" || slices.Contains(s.Flags, specs.LinuxSeccompFlagWaitKillableRecv))
}
