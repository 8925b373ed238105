package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// writeOwner notes which test process owns the node, so that Sweep can tell a node in use from one left by a test that
// was killed. It does so at once: another process may sweep now, to which half a note is that of a dead owner.
func writeOwner(dir string) error {
	next := dir + "/owner.next"
	if err := os.WriteFile(next, []byte(identity(os.Getpid())), 0o644); err != nil {
		return err
	}
	return os.Rename(next, dir+"/owner")
}

// identity is a process id with its start time, since ids are used again. It is empty when there is no such process.
func identity(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fmt.Sprintf("%d %s", pid, fields[19])
}

// Sweep removes the nodes whose test process has died without closing them.
func Sweep() {
	owners, _ := filepath.Glob(filepath.Join(os.TempDir(), "bt-*", "owner"))
	for _, file := range owners {
		owner, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, _, _ := strings.Cut(string(owner), " ")
		if id, err := strconv.Atoi(pid); err == nil && identity(id) == string(owner) {
			continue
		}
		dir := filepath.Dir(file)
		if err := (traces{dir, instance(dir + "/root")}).erase(); err != nil {
			fmt.Fprintf(os.Stderr, "sweep what a killed test left in %s: %v\n", dir, err)
		}
	}
}
