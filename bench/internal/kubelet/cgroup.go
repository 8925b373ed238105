package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// RemoveCgroup removes a cgroup and those below it from every hierarchy. Nothing there is no error.
func RemoveCgroup(path string) error {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*")
	var errs []error
	for _, root := range append(roots, "/sys/fs/cgroup") {
		errs = append(errs, removeTree(filepath.Join(root, path)))
	}
	return errors.Join(errs...)
}

func removeTree(top string) error {
	var dirs []string
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	sort.Slice(dirs, func(i, j int) bool { return len(dirs[i]) > len(dirs[j]) })
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}
