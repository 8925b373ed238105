package cgroup

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SlicePath is where systemd puts a slice: a-b.slice is below a.slice. What is no slice is an error.
func SlicePath(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q does not name a slice, such as kubepods-burstable.slice", slice)
	}
	if name == "-" {
		return "/", nil
	}
	path, parts := "/", strings.Split(name, "-")
	for i, p := range parts {
		if p == "" {
			return "", fmt.Errorf("slice %q: nothing may be empty between its dashes", slice)
		}
		path = filepath.Join(path, strings.Join(parts[:i+1], "-")+".slice")
	}
	return path, nil
}

// ScopePath is where systemd puts the scope that an OCI runtime asks it for with <slice>:<prefix>:<name>.
func ScopePath(oci string) (string, error) {
	f := strings.Split(oci, ":")
	if len(f) != 3 || f[2] == "" {
		return "", fmt.Errorf("%q is not a systemd cgroup, which is written slice:prefix:name", oci)
	}
	if f[0] == "" {
		f[0] = "system.slice"
	}
	slice, err := SlicePath(f[0])
	if err != nil {
		return "", err
	}
	return filepath.Join(slice, f[1]+"-"+f[2]+".scope"), nil
}

// Populated reports whether a process is in this group or below it. A group that is gone has none.
func (g *Group) Populated() bool {
	data, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
	return err == nil && strings.Contains(string(data), "populated 1")
}

// Own is the directory of the calling process's cgroup in the cgroup2 hierarchy that is mounted at tracking.
func Own(tracking string) (string, error) { return Of(tracking, os.Getpid()) }

// Of is the directory of a process's cgroup in the cgroup2 hierarchy that is mounted at tracking.
func Of(tracking string, pid int) (string, error) {
	path, err := PathOf(pid, "")
	if err != nil {
		return "", err
	}
	return filepath.Join(tracking, path), nil
}

// PathOf is where in a hierarchy a process is: in that of a v1 controller or, where controller is empty, in the cgroup2
// hierarchy. It goes by /proc/<pid>/cgroup (cgroups(7)), and a process that is in none is an error.
func PathOf(pid int, controller string) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if controller == "" && f[0] == "0" || controller != "" && slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2], nil
		}
	}
	return "", fmt.Errorf("find the cgroup of process %d: it is in no %s hierarchy", pid, cmp.Or(controller, "cgroup2"))
}

// TreePath is where a cgroup is that an OCI runtime or a kubelet names: a path, a slice, or slice:prefix:name.
func TreePath(name string) (string, error) {
	switch {
	case strings.Contains(name, ":"):
		return ScopePath(name)
	case strings.HasPrefix(name, "/") || !strings.HasSuffix(name, ".slice"):
		return checked("/" + strings.TrimPrefix(name, "/"))
	}
	path, err := SlicePath(name)
	if err != nil {
		return "", err
	}
	return checked(path)
}
