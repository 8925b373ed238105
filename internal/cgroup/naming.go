package cgroup

// Naming is how the cgroups of containers are called: by Berth's own names, or by those of another runtime, by which
// agents tell the cgroup of a container from others.
type Naming string

// The namings. The zero value is NamedBerth.
const (
	NamedBerth      Naming = "berth"
	NamedContainerd Naming = "containerd"
	NamedCRIO       Naming = "crio"
)

// Leaf is the name of a container's cgroup where the cgroup driver is cgroupfs.
func (n Naming) Leaf(ctr string) string {
	if n == NamedCRIO {
		return "crio-" + ctr
	}
	return ctr
}

// ScopePrefix is what stands before the dash and the container's id in the name of its scope, where the cgroup driver
// is systemd. instance is that of the daemon.
func (n Naming) ScopePrefix(instance string) string {
	switch n {
	case NamedContainerd:
		return "cri-containerd"
	case NamedCRIO:
		return "crio"
	}
	return instance
}
