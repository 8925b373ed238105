package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hierarchies lists the mount points below /sys/fs/cgroup of every hierarchy, v1 and v2, whose root a name belongs to.
func hierarchies() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	var dirs []string
	for _, line := range strings.Split(string(data), "\n") {
		before, after, ok := strings.Cut(line, " - ")
		f, t := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(t) < 1 || t[0] != "cgroup" && t[0] != "cgroup2" {
			continue
		}
		if !slices.Contains(dirs, f[4]) {
			dirs = append(dirs, f[4])
		}
	}
	return dirs, nil
}

// RemoveTree removes the cgroup name and those below it, in every hierarchy: what a runtime has left behind. It is nil when
// nothing is there, and unix.EBUSY when a process is left in one of them.
func RemoveTree(name string) error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeDirs(filepath.Join(dir, filepath.Clean("/"+name))))
	}
	return errors.Join(errs...)
}

// Children lists the names of the cgroups directly below name, in whichever hierarchies they are.
func Children(name string) ([]string, error) {
	dirs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(dir, filepath.Clean("/"+name)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}
