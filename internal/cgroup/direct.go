package cgroup

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// Direct has pods' cgroups made without the help of an init system, which is the cgroup driver cgroupfs. A pod to which
// nobody gave a cgroup has /<instance>/<id>.
type Direct struct {
	Instance string
	Naming   Naming // of containers
}

// Parent is the cgroup of a pod that was given none.
func (d Direct) Parent(pod string) string { return "/" + d.Instance + "/" + pod }

// Container is a container's cgroup as an OCI runtime takes it.
func (d Direct) Container(parent, ctr string) (string, error) {
	if strings.Contains(parent, ":") {
		return "", fmt.Errorf("cgroup parent %q: this node's cgroup driver is cgroupfs, which wants a path such as "+
			"/kubepods/pod1", parent)
	}
	return filepath.Join("/", parent, d.Naming.Leaf(ctr)), nil
}

// Path is where in the tree a parent is.
func (d Direct) Path(parent string) (string, error) { return checked(filepath.Join("/", parent)) }

// RemoveParent does nothing: what a pod was given is removed by whoever named it.
func (d Direct) RemoveParent(context.Context, string) error { return nil }

// RemovePod removes the cgroup of a pod that was given none, and kills what is left in it. nil when there is none.
func (d Direct) RemovePod(_ context.Context, pod string) error { return RemoveTree(d.Parent(pod)) }

// Pods lists what is called like a pod that has a cgroup of Berth's own.
func (d Direct) Pods(context.Context) ([]string, error) { return Children("/" + d.Instance) }
