package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// What bounds a slice: systemd takes unit names of at most maxUnitName bytes, and the kernel paths of 4095, which also
// have to hold the mount point, the container's scope and a file in it.
const (
	maxUnitName  = 255
	maxSlicePath = 3072
)

// sliceOf is the slice of a pod whose cgroup parent was given in one of three forms. "kubepods-pod1.slice" is a slice.
// "/kubepods.slice/kubepods-pod1.slice" is the path of one, of which the last part counts. "/kubepods/burstable/pod-1"
// is a path of the cgroupfs driver, and is converted as kubelets do it: dashes in a part become underscores, and the
// parts are joined with dashes (kubepods-burstable-pod_1.slice).
func sliceOf(parent string) (slice string, converted bool, err error) {
	slice = filepath.Base(parent)
	if !strings.HasSuffix(slice, ".slice") {
		converted = true
		slice, err = convert(parent)
	}
	if err == nil {
		err = checkSlice(slice)
	}
	if err != nil {
		return "", converted, fmt.Errorf("cgroup parent %q: this node's cgroup driver is systemd: %w", parent, err)
	}
	return slice, converted, nil
}

// convert makes a slice of a path.
func convert(path string) (string, error) {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	if len(parts) == 0 {
		return "", errors.New("a pod cannot have the root, which holds every other cgroup: name a cgroup below it")
	}
	for i, p := range parts {
		if err := checkPart(p); err != nil {
			return "", err
		}
		parts[i] = strings.ReplaceAll(p, "-", "_")
	}
	return strings.Join(parts, "-") + ".slice", nil
}

// unitKinds are the units that have a cgroup.
var unitKinds = []string{".slice", ".scope", ".service"}

// checkPart refuses a part of a path that would get another meaning in the name of a slice.
func checkPart(p string) error {
	if p == "." || p == ".." {
		return fmt.Errorf("%q is no name of a cgroup", p)
	}
	if slices.ContainsFunc(unitKinds, func(kind string) bool { return strings.HasSuffix(p, kind) }) {
		return fmt.Errorf("%q is a unit of systemd, and no path below one can be converted: "+
			"name a slice, such as kubepods-pod1.slice", p)
	}
	if i := strings.IndexFunc(p, func(r rune) bool { return r == '\\' || !inUnitName(r) }); i >= 0 {
		return fmt.Errorf("%q has %q, and only letters, digits, \"-\", \"_\" and \".\" can be converted to a slice",
			p, []rune(p[i:])[0])
	}
	return nil
}

// inUnitName says which characters systemd takes in the name of a slice. It takes ":", too, but an OCI runtime is told
// slice:prefix:name.
func inUnitName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(`-_.\`, r)
}

// checkSlice refuses what systemd refuses when the first container is made.
func checkSlice(slice string) error {
	path, err := cgroup.SlicePath(slice)
	switch i := strings.IndexFunc(slice, func(r rune) bool { return !inUnitName(r) }); {
	case err != nil:
		return err
	case i >= 0:
		return fmt.Errorf("slice %q has %q: only letters, digits, \"-\", \"_\", \".\" and \"\\\" can be in it",
			slice, []rune(slice[i:])[0])
	case len(slice) > maxUnitName:
		return fmt.Errorf("slice %q is %d bytes long, and systemd takes %d", slice, len(slice), maxUnitName)
	case len(path) > maxSlicePath:
		return fmt.Errorf("slice %q has %d levels, so that its path %q takes %d bytes of the %d that there is room for",
			slice, strings.Count(path, "/"), path, len(path), maxSlicePath)
	}
	return nil
}

// RemoveParent removes the slice to which the parent of a pod was converted, and the slices above it, as far as they
// are empty and not configured: systemd makes them with the first container, and keeps them. A parent that was given as
// a slice stays with whoever named it.
func (u *Units) RemoveParent(ctx context.Context, parent string) error {
	slice, converted, err := sliceOf(parent)
	if err != nil || !converted {
		return nil // no container was made below it
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	for name := strings.TrimSuffix(slice, ".slice"); name != ""; name = name[:max(strings.LastIndexByte(name, '-'), 0)] {
		removed, err := removeSlice(ctx, u.Manager, u.Mount, name+".slice")
		if err != nil {
			return fmt.Errorf("remove %s, which was made for the cgroup parent %q: %w", name+".slice", parent, err)
		}
		if !removed {
			return nil
		}
	}
	return nil
}

// removeSlice stops a slice and removes its cgroup, unless something is in it or it is configured.
//
// The stop leaves out what depends on the slice. So it ends nothing of another pod that gets a container in the slice
// at this moment: the scope of that container goes on in its cgroup, and the next start makes the slice active again.
func removeSlice(ctx context.Context, m *Manager, mount, slice string) (removed bool, err error) {
	path, err := cgroup.SlicePath(slice)
	if err != nil {
		return false, err
	}
	dir := filepath.Join(mount, path)
	if used, err := inUse(dir); used || err != nil {
		return false, err
	}
	configured, err := m.configured(ctx, slice)
	if configured || err != nil {
		return false, err
	}
	if err := m.stopAlone(ctx, slice); err != nil {
		return false, err
	}
	err = os.Remove(dir) // systemd does it too, a moment later
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
		return true, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
		return false, nil
	}
	return false, err
}

// inUse reports whether a cgroup has processes, or cgroups below it.
func inUse(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(entries, os.DirEntry.IsDir) {
		return true, nil
	}
	pids, err := cgroup.Pids(dir)
	return len(pids) > 0, err
}

// configured reports whether a unit is configured: in a file, with a drop-in, or as a kubelet does when it makes one.
func (m *Manager) configured(ctx context.Context, name string) (bool, error) {
	object, err := m.object(ctx, name)
	if object == "" || err != nil {
		return false, err
	}
	var file string
	if err := m.property(ctx, object, "Unit", "FragmentPath", &file); err != nil || file != "" {
		return file != "", err
	}
	var dropIns []string
	err = m.property(ctx, object, "Unit", "DropInPaths", &dropIns)
	return len(dropIns) > 0, err
}

// stopAlone has systemd stop a unit, and nothing that depends on it. It does not wait. nil when there is no such unit.
func (m *Manager) stopAlone(ctx context.Context, name string) error {
	err := m.call(ctx, "Manager.StopUnit", []any{name, "ignore-dependencies"}, []any{new(dbus.ObjectPath)})
	if err != nil && !named(err, "NoSuchUnit") {
		return fmt.Errorf("have systemd stop %s: %w", name, err)
	}
	return nil
}
