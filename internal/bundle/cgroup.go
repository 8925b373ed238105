package bundle

import (
	"context"
	"path/filepath"
	"strings"

	"berth/internal/cgroup"
	"berth/internal/sandbox"
)

// CgroupDriver says where pods and containers are in the tree of cgroups, and removes what of it is Berth's own. All
// may be repeated.
type CgroupDriver interface {
	// Parent is the cgroup of a pod that was given none.
	Parent(pod string) string
	// Container is a container's, as OCI runtimes take it; an error of the parent.
	Container(parent, ctr string) (string, error)
	// Path is where in the tree the cgroup is that a pod was given.
	Path(parent string) (string, error)
	// RemoveParent removes what the driver made of it under another name, if it is empty.
	RemoveParent(ctx context.Context, parent string) error
	// RemovePod removes the cgroup that Parent names, with all in it; nil without one.
	RemovePod(ctx context.Context, pod string) error
}

// cgroupParent is the cgroup below which a pod's containers live.
func (b *Builder) cgroupParent(r *sandbox.Record) string {
	if parent := r.Config.Get().GetLinux().GetCgroupParent(); parent != "" {
		return parent
	}
	return b.Cgroups.Parent(string(r.ID))
}

// Cgroup is that of a new container, as an OCI runtime takes it. The record keeps it: the naming may be another one
// later. That the pod's parent suits the driver was seen when the pod was made; where the driver was changed since, its
// own error is the one that counts, and it comes from the runtime.
func (b *Builder) Cgroup(r *sandbox.Record, ctr sandbox.ID) string {
	parent := b.cgroupParent(r)
	path, err := b.Cgroups.Container(parent, string(ctr))
	if err != nil || r.GivenPlain() {
		return filepath.Join("/", parent, b.Naming.Leaf(string(ctr)))
	}
	return path
}

// PodCgroup is where in the tree a pod's cgroup is.
func (b *Builder) PodCgroup(r *sandbox.Record) (string, error) {
	parent := b.cgroupParent(r)
	if r.GivenPlain() {
		return cgroup.TreePath("/" + parent)
	}
	return b.Cgroups.Path(parent)
}

// WarnConverted tells of a pod whose cgroup has another name than the one that was asked for. A kubelet that asks for
// such a name has cgroupfs as its driver, and writes the limits of pods and of their classes where no container is.
func (b *Builder) WarnConverted(r *sandbox.Record) {
	parent := r.Config.Get().GetLinux().GetCgroupParent()
	if parent == "" || strings.HasSuffix(parent, ".slice") {
		return
	}
	if path, err := b.PodCgroup(r); err == nil && path != filepath.Clean("/"+parent) {
		b.Log.Warn("the pod's cgroup parent was converted to a slice of systemd: limits that a kubelet sets of the pod "+
			"do not hold; set cgroupDriver: systemd for the kubelet", "pod", r.ID, "cgroup_parent", parent, "cgroup", path)
	}
}

// Cgroup is the pod's cgroup, which the OCI runtime makes with the first container.
func Cgroup(p Pod) Part {
	return Part{Remove: func(ctx context.Context) error { return removeCgroup(ctx, p) }}
}

// removeCgroup removes the pod's cgroup where Berth named it; a kubelet removes its own. Of a cgroup that was converted
// for systemd the name is Berth's.
func removeCgroup(ctx context.Context, p Pod) error {
	if parent := p.r.Config.Get().GetLinux().GetCgroupParent(); parent != "" {
		if p.r.GivenPlain() {
			return nil
		}
		return p.b.Cgroups.RemoveParent(ctx, parent)
	}
	return p.b.Cgroups.RemovePod(ctx, string(p.r.ID))
}

// givenCgroup is where the cgroup is that the pod was given, "" when it was given none.
func (p Pod) givenCgroup() string {
	parent := p.r.Config.Get().GetLinux().GetCgroupParent()
	if parent == "" {
		return ""
	}
	if path, err := p.b.PodCgroup(p.r); err == nil {
		return path
	}
	return parent
}
