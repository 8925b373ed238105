package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// writeOwner notes which test process owns the node, so that Sweep can tell a node in use from one left by a test that was
// killed.
func (n *Node) writeOwner() error {
	return os.WriteFile(n.Dir+"/owner", []byte(identity(os.Getpid())), 0o644)
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
	owners, _ := filepath.Glob("/tmp/bt-*/owner")
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
		n := &Node{Dir: dir, Root: dir + "/root", Instance: instance(dir + "/root")}
		if err := n.erase(); err != nil {
			fmt.Fprintf(os.Stderr, "sweep what a killed test left in %s: %v\n", dir, err)
		}
	}
}

// erase ends every process of the node and removes its cgroups, namespace pins and folders.
func (n *Node) erase() error {
	if n.Dir == "" {
		return nil
	}
	errs := []error{n.endProcesses()}
	for _, dir := range n.groups() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	pins, _ := filepath.Glob("/run/netns/" + n.Instance + "-*")
	for _, pin := range pins {
		errs = append(errs, os.Remove(pin))
	}
	return errors.Join(append(errs, os.RemoveAll(n.Dir))...)
}

func (n *Node) endProcesses() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		found := 0
		for _, dir := range n.groups() {
			_ = os.WriteFile(dir+"/freezer.state", []byte("THAWED"), 0)
			pids, _ := os.ReadFile(dir + "/cgroup.procs")
			for _, field := range strings.Fields(string(pids)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
					found++
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		if found == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes do not end: %s", strings.Join(n.processes(), "; "))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
