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

// CheckPath refuses the path of a cgroup, as for Locate, that names a file of the cgroup file system, or something
// below one: no group can be made there. A group that is not there yet will have the files of one that is there.
func CheckPath(path string) error {
	path, err := checked(path)
	if err != nil {
		return err
	}
	hierarchies, err := mounted()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if err := checkIn(h.dir, path); err != nil {
			return fmt.Errorf("cgroup %s: %w", path, err)
		}
	}
	return nil
}

// checkIn is CheckPath in one hierarchy.
func checkIn(top, path string) error {
	if info, err := os.Lstat(filepath.Join(top, path)); err == nil && info.IsDir() {
		return nil // as a kubelet has made it before it asks for the pod
	}
	dir, like := top, "" // like is a group with the files that the next component must not be
	for i, name := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		dir = filepath.Join(dir, name)
		info, err := os.Lstat(dir)
		there := err == nil
		if !there && errors.Is(err, fs.ErrNotExist) {
			if i == 0 {
				like = sample(top) // the root lacks some of the files
			}
			info, err = os.Lstat(filepath.Join(like, name))
		}
		switch {
		case err == nil && !info.IsDir():
			return fmt.Errorf("%q is the name of a file in the cgroups of %s", name, top)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case there:
			like = dir
		}
	}
	return nil
}

// sample is a group right below the root of a hierarchy; the root where there is none.
func sample(top string) string {
	entries, _ := os.ReadDir(top) // who cannot read them finds out when the group is made
	if i := slices.IndexFunc(entries, fs.DirEntry.IsDir); i >= 0 {
		return filepath.Join(top, entries[i].Name())
	}
	return top
}
