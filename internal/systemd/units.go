package systemd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/cgroup"
)

// Units are those of one Berth. What a pod or container has is named after the instance and its id:
//
//	<instance>.slice                    all that is Berth's own
//	<instance>-monitors.scope           the monitors, in that slice
//	<instance>-pods-<id>.slice          a pod that was given no cgroup, in <instance>-pods.slice in that slice
//	<instance>-<id>.scope               a container, in its pod's slice, unless Naming calls it otherwise
type Units struct {
	Manager  *Manager
	Instance string
	Naming   cgroup.Naming // of containers
	Mount    string        // of the cgroup2 hierarchy
}

// goneTimeout bounds the wait for a unit that was killed and stopped.
const goneTimeout = 30 * time.Second

// ownSlice is the slice of all that is an instance's own.
func ownSlice(instance string) string { return instance + ".slice" }

// podsSlice holds the slices of the pods that were given no cgroup.
func podsSlice(instance string) string { return instance + "-pods.slice" }

func (u *Units) podSlice(pod string) string { return u.Instance + "-pods-" + pod + ".slice" }

// Parent is the cgroup of a pod that was given none.
func (u *Units) Parent(pod string) string {
	path, err := cgroup.SlicePath(u.podSlice(pod))
	if err != nil {
		panic("systemd: " + err.Error()) // instances and ids are made of letters, digits and single dashes
	}
	return path
}

// Container is a container's cgroup as an OCI runtime takes it. The parent is the slice of a pod, the whole path of
// that slice, as a kubelet has it, or a path of the cgroupfs driver, which is converted.
func (u *Units) Container(parent, ctr string) (string, error) {
	slice, _, err := sliceOf(parent)
	if err != nil {
		return "", err
	}
	return slice + ":" + u.Naming.ScopePrefix(u.Instance) + ":" + ctr, nil
}

// Path is where in the tree a parent is, in any form that Container takes.
func (u *Units) Path(parent string) (string, error) {
	slice, _, err := sliceOf(parent)
	if err != nil {
		return "", err
	}
	return cgroup.SlicePath(slice)
}

// RemovePod removes the slice of a pod that was given none, and kills what is left in it. nil when there is none. A pod
// that was made while cgroupfs was the driver has a cgroup without a unit, which goes, too.
func (u *Units) RemovePod(ctx context.Context, pod string) error {
	return errors.Join(u.end(ctx, u.podSlice(pod), u.Parent(pod)), cgroup.Direct{Instance: u.Instance}.RemovePod(ctx, pod))
}

// Pods lists the pods that have a slice of Berth's own.
func (u *Units) Pods(ctx context.Context) ([]string, error) {
	return ids(ctx, u.Manager, u.Instance+"-pods-", ".slice")
}

// Containers lists the containers that have a scope, live or failed. Those whose scopes are called as another runtime
// calls its own are not among them: that runtime may be on the node, too.
func (u *Units) Containers(ctx context.Context) ([]string, error) {
	return ids(ctx, u.Manager, u.Instance+"-", ".scope")
}

// ids lists the ids between before and after in the names of units.
func ids(ctx context.Context, m *Manager, before, after string) ([]string, error) {
	found, err := m.units(ctx, before+"*"+after)
	var list []string
	for _, f := range found {
		id := strings.TrimSuffix(strings.TrimPrefix(f.Name, before), after)
		if raw, err := hex.DecodeString(id); err == nil && len(raw) == 32 {
			list = append(list, id)
		}
	}
	return list, err
}

// EndContainer kills what is in a container's scope and has systemd forget the scope, also one that failed. nil when
// there is none. The scope is found by the container's id: the naming may be another one by now.
func (u *Units) EndContainer(ctx context.Context, ctr string) error {
	found, err := u.Manager.units(ctx, "*-"+ctr+".scope")
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		path, err := u.Manager.cgroupOf(ctx, f.Name)
		if err == nil {
			err = u.end(ctx, f.Name, path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// end kills what is in a unit, has systemd stop and forget it, and waits until its cgroup is gone. A stop would give
// the processes a minute and a half to end by themselves.
func (u *Units) end(ctx context.Context, name, path string) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	var g *cgroup.Group
	if path != "" && path != "/" {
		g = cgroup.At(filepath.Join(u.Mount, path))
		if err := g.Kill(); err != nil {
			return fmt.Errorf("kill what is in %s: %w", name, err)
		}
	}
	if err := errors.Join(u.Manager.stop(ctx, name), u.Manager.forget(ctx, name)); err != nil {
		return err
	}
	if g == nil {
		return nil
	}
	if err := g.WaitEmpty(ctx); err != nil {
		return fmt.Errorf("stop %s: %w: its processes do not die of SIGKILL (see /proc/<pid>/stack)", name, err)
	}
	return g.Remove() // systemd does it too, a moment later
}

// Tidy stops the slice of all that is Berth's own when nothing lives in it.
func (u *Units) Tidy(ctx context.Context) error {
	path, err := cgroup.SlicePath(ownSlice(u.Instance))
	if err != nil {
		return err
	}
	if cgroup.At(filepath.Join(u.Mount, path)).Populated() {
		return nil
	}
	return u.Manager.stop(ctx, ownSlice(u.Instance))
}
