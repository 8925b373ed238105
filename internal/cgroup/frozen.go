package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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

// selfFreezing is the file of a v1 freezer group that says whether the group is frozen by its own state, and not by
// that of one above it.
const selfFreezing = "freezer.self_freezing"

// frozenItself reports whether the group whose directory is open is frozen by its own freezer.state.
func frozenItself(dir *os.File) bool {
	data, err := readAt(dir, selfFreezing)
	return err == nil && strings.TrimSpace(string(data)) == "1"
}

// thaw ends the freezing of the group at path and of those below it, where that is their own and the freezer is that of
// v1: what it has stopped does not die of SIGKILL before it goes on. cgroup.freeze of v2 holds up no SIGKILL. What is
// frozen by a group above stays so.
func thaw(path string) error {
	if _, err := os.Lstat(filepath.Join(path, selfFreezing)); err != nil {
		return nil // no group of the freezer, or none at all
	}
	w := &walk{path: path, enter: func(w *walk) error {
		if !frozenItself(w.dir) {
			return nil
		}
		if err := writeAt(w.dir, "freezer.state", "THAWED"); err != nil && !isGone(err) {
			return w.fail("thaw", "freezer.state", err)
		}
		return nil
	}}
	if err := w.run(); err != nil {
		return fmt.Errorf("thaw cgroup: %w", err)
	}
	return nil
}

// writeAt writes a file of the group whose directory is open.
func writeAt(dir *os.File, name, text string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}

// FrozenItself reports whether a cgroup, whose path is that of Locate, is frozen by its own freezer.state of v1.
func FrozenItself(path string) bool {
	dir := freezerDir(path)
	if dir == "" {
		return false
	}
	f, err := openGroup(unix.AT_FDCWD, dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return frozenItself(f)
}

// Thaw ends the freezing that FrozenItself tells of, and that of the groups below.
func Thaw(path string) error {
	if dir := freezerDir(path); dir != "" {
		return thaw(dir)
	}
	return nil
}

// freezerDir is the directory of a cgroup in the hierarchy of the v1 freezer, "" where the host has none.
func freezerDir(path string) string {
	at, err := Locate(path)
	if err != nil {
		return ""
	}
	return at.V1["freezer"]
}
