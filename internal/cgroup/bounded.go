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
// processes are to be in as well. delegated says that base itself is the caller's. The name is of no group yet: see
// Vacate.
//
// With an error of bounds the group is there nonetheless.
func Bounded(base, name string, delegated bool, b Bounds) (group string, tasks []string, err error) {
	at, err := Locate("/" + name)
	if err != nil {
		return "", nil, err
	}
	g, err := Make(base, name)
	if err != nil {
		return "", nil, err
	}
	tasks, err = b.apply(Mode(), at.V1, base, name, delegated)
	return g.Path(), tasks, err
}

// vacateTime is how long what is killed may take to leave a group that is vacated, and mostHung how many groups there
// are of which each may have something that does not leave it.
const (
	vacateTime = time.Second
	mostHung   = 16
)

// Vacate ends what is in the group that Bounded has made of this name, and removes it, and not only empties it: what is
// born into a group that was ended once may be killed at once (see Make). There may be none. It returns the name for
// the next one: another, with a number, where something in this one hangs in the kernel and does not die, of which err
// tells. What earlier calls have left so is ended and removed likewise. Where no name is free it is "".
func Vacate(base, name string) (free string, err error) {
	var errs []error
	for n := 1; n <= mostHung; n++ {
		at := name
		if n > 1 {
			at = fmt.Sprintf("%s-%d", name, n)
		}
		_, none := os.Lstat(filepath.Join(base, at))
		err := removeTree(filepath.Join(base, at), time.Now().Add(vacateTime))
		if err == nil {
			err = removeEverywhere("/"+at, vacateTime)
		}
		if err == nil && free == "" {
			free = at
		}
		errs = append(errs, err)
		if free != "" && none != nil {
			break
		}
	}
	return free, errors.Join(errs...)
}

// apply bounds the group where the controllers of the host are. On cgroup v2 they are in the cgroup2 hierarchy, also
// where somebody has mounted one of v1 beside it, which bounds nothing (see usage).
func (b Bounds) apply(mode Modes, v1 map[string]string, base, name string, delegated bool) (tasks []string, err error) {
	if mode != V2 && len(v1) > 0 {
		return b.applyV1(v1)
	}
	return nil, b.applyV2(base, name, delegated)
}

// applyV1 makes the group in each v1 hierarchy that bounds something. One that the host does not have is an error.
func (b Bounds) applyV1(dirs map[string]string) (tasks []string, err error) {
	bounds := map[string]map[string]int64{
		"memory": {"memory.limit_in_bytes": b.Memory},
		"pids":   {"pids.max": int64(b.Processes)},
		"cpu":    {"cpu.shares": int64(b.Weight) * 1024 / 100},
	}
	seen := map[string]bool{}
	for controller, files := range bounds {
		dir := dirs[controller]
		if dir == "" {
			for file, n := range files {
				if n != 0 {
					err = errors.Join(err, fmt.Errorf("%s: this host has no cgroup hierarchy with controller %s", file, controller))
				}
			}
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return tasks, fmt.Errorf("make cgroup: %w", err)
		}
		if !seen[dir] {
			seen[dir] = true
			tasks = append(tasks, dir)
		}
		err = errors.Join(err, set(dir, files))
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
