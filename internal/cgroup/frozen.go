package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Frozen reports whether a process stands still because its cgroup, or one above it, is frozen: by the freezer of v1,
// or by cgroup.freeze of v2. What cannot be read is not frozen.
func Frozen(pid int) bool {
	hierarchies, err := mounted()
	if err != nil {
		return false
	}
	for _, h := range hierarchies {
		controller, file, word := "freezer", "freezer.state", "FROZEN"
		if h.v2 {
			controller, file, word = "", "cgroup.events", "frozen 1"
		} else if !slices.Contains(h.controllers, controller) {
			continue
		}
		path, err := PathOf(pid, controller)
		if err != nil {
			continue
		}
		// Both files tell also of what comes from above: freezer.state of a v1 cgroup is FROZEN when a parent's is.
		data, err := os.ReadFile(filepath.Join(h.dir, path, file))
		if err == nil && strings.Contains(string(data), word) {
			return true
		}
	}
	return false
}
