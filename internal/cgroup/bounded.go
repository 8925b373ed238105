package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Bounds are what the processes of a group may use together.
type Bounds struct {
	Memory    int64 // bytes, the page cache of what they read and write among them; 0 for no bound
	Processes int   // and threads
	Weight    int   // of their share of the processors, as cgroup v2 counts it: 100 is usual
}

// Bounded makes the group name below base, a directory of the cgroup2 hierarchy, and bounds it there or, where the
// controllers are in v1 hierarchies, in a group of these. It returns the group, and the directories of v1 that its
// processes are to be in as well. delegated says that base itself is the caller's.
//
// A group of that name is removed first, with all that is in it, and not only emptied: what is born into a group that
// was ended once may be killed at once (see Make).
//
// With an error of bounds the group is there nonetheless.
func Bounded(base, name string, delegated bool, b Bounds) (group string, tasks []string, err error) {
	at, err := Locate("/" + name)
	if err != nil {
		return "", nil, err
	}
	if err := RemoveBounded(base, name); err != nil {
		return "", nil, err
	}
	g, err := Make(base, name)
	if err != nil {
		return "", nil, err
	}
	if len(at.V1) > 0 {
		tasks, err = b.applyV1(at.V1)
		return g.Path(), tasks, err
	}
	return g.Path(), nil, b.applyV2(base, name, delegated)
}

// RemoveBounded removes what Bounded has made, and ends what is in it. There may be nothing.
func RemoveBounded(base, name string) error {
	if err := removeTree(filepath.Join(base, name), time.Now().Add(removeTimeout)); err != nil {
		return err
	}
	return RemoveTree("/" + name)
}

// applyV1 makes the group in each v1 hierarchy that bounds something.
func (b Bounds) applyV1(dirs map[string]string) (tasks []string, err error) {
	files := map[string]map[string]int64{
		"memory": {"memory.limit_in_bytes": b.Memory},
		"pids":   {"pids.max": int64(b.Processes)},
		"cpu":    {"cpu.shares": int64(b.Weight) * 1024 / 100},
	}
	seen := map[string]bool{}
	for controller, values := range files {
		dir := dirs[controller]
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return tasks, fmt.Errorf("make cgroup: %w", err)
		}
		if !seen[dir] {
			seen[dir] = true
			tasks = append(tasks, dir)
		}
		err = errors.Join(err, set(dir, values))
	}
	return tasks, err
}

// applyV2 has the controllers reach the group, and bounds it.
func (b Bounds) applyV2(base, name string, delegated bool) error {
	above := []string{}
	for dir := filepath.Dir(filepath.Join(base, name)); len(dir) > len(base); dir = filepath.Dir(dir) {
		above = append([]string{dir}, above...)
	}
	if delegated {
		above = append([]string{base}, above...)
	}
	for _, dir := range above {
		if err := Write(filepath.Join(dir, "cgroup.subtree_control"), "+memory +pids +cpu"); err != nil {
			return fmt.Errorf("have controllers in %s: %w", dir, err)
		}
	}
	values := map[string]int64{"memory.max": b.Memory, "pids.max": int64(b.Processes), "cpu.weight": int64(b.Weight)}
	return set(filepath.Join(base, name), values)
}

// set writes values that are not 0.
func set(dir string, values map[string]int64) error {
	var errs []error
	for file, n := range values {
		if n == 0 {
			continue
		}
		err := Write(filepath.Join(dir, file), strconv.FormatInt(n, 10))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("this kernel has no %s: %w", file, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
