package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// root is where hosts mount their cgroups, and unified where a hybrid one mounts its cgroup2 hierarchy.
const (
	root    = "/sys/fs/cgroup"
	unified = root + "/unified"
)

// Modes are the ways in which hosts mount cgroups.
type Modes string

const (
	V1     Modes = "v1"     // v1 hierarchies only
	Hybrid Modes = "hybrid" // v1 hierarchies with the controllers, and a cgroup2 hierarchy without any
	V2     Modes = "v2"     // one cgroup2 hierarchy
)

// Mode says how this host mounts its cgroups.
func Mode() Modes {
	switch {
	case isCgroup2(root):
		return V2
	case isCgroup2(unified):
		return Hybrid
	}
	return V1
}

// hierarchy is one mounted hierarchy.
type hierarchy struct {
	dir         string
	device      string   // what tells hierarchies apart that are mounted more than once
	controllers []string // of v1; a named hierarchy's is name=<name>
	v2          bool
}

// mounted lists the hierarchies that this process sees. They are taken to stay as they are.
var mounted = sync.OnceValues(func() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
})

// parseMounts reads the hierarchies from a mountinfo file. Of several mounts of one, the one below root counts.
func parseMounts(r io.Reader) ([]hierarchy, error) {
	var all []hierarchy
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // an overlay's line names each of its layers
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 3 || (right[0] != "cgroup" && right[0] != "cgroup2") {
			continue
		}
		h := hierarchy{dir: left[4], device: left[2], v2: right[0] == "cgroup2"}
		if !h.v2 {
			h.controllers = slices.DeleteFunc(strings.Split(right[2], ","), notController)
		}
		all = append(all, h)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	slices.SortStableFunc(all, func(a, b hierarchy) int { return place(a.dir) - place(b.dir) })
	var once []hierarchy
	for _, h := range all {
		if !slices.ContainsFunc(once, func(o hierarchy) bool { return o.device == h.device }) {
			once = append(once, h)
		}
	}
	return once, nil
}

func place(dir string) int {
	if dir == root || strings.HasPrefix(dir, root+"/") {
		return 0
	}
	return 1
}

// notController says which mount options of a v1 hierarchy are not its controllers.
func notController(option string) bool {
	return option == "rw" || option == "ro" || option == "xattr" || option == "noprefix" || option == "clone_children" ||
		option == "cpuset_v2_mode" || strings.HasPrefix(option, "release_agent=") || strings.HasPrefix(option, "seclabel")
}

// Located is where one cgroup is, whether it is there or not.
type Located struct {
	V1      map[string]string // its directory by controller, in v1 hierarchies
	Unified string            // its directory in the cgroup2 hierarchy, "" where the host has none
}

// Locate finds the directories of a cgroup from its path as an OCI runtime on the cgroupfs driver takes it, such as
// /berth/<pod>/<container>.
func Locate(path string) (Located, error) {
	path, err := checked(path)
	if err != nil {
		return Located{}, err
	}
	hierarchies, err := mounted()
	if err != nil {
		return Located{}, err
	}
	at := Located{V1: map[string]string{}}
	for _, h := range hierarchies {
		if h.v2 {
			at.Unified = filepath.Join(h.dir, path)
		}
		for _, c := range h.controllers {
			at.V1[c] = filepath.Join(h.dir, path)
		}
	}
	return at, nil
}

// checked refuses a path that is not absolute, and the root, which is everybody's.
func checked(path string) (string, error) {
	clean := filepath.Clean(path)
	if !filepath.IsAbs(path) || clean == "/" || slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("%q is not the path of a cgroup below the root", path)
	}
	return clean, nil
}

// dirs are the directories of a cgroup that are there, one a hierarchy.
func dirs(path string) ([]string, error) {
	path, err := checked(path)
	if err != nil {
		return nil, err
	}
	hierarchies, err := mounted()
	if err != nil {
		return nil, err
	}
	var there []string
	for _, h := range hierarchies {
		dir := filepath.Join(h.dir, path)
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			there = append(there, dir)
		}
	}
	return there, nil
}
