package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/test/hygiene"
	"berth/test/timeouts"
)

// traces finds what a node has on the machine, by the names that everything of it carries.
type traces struct{ dir, instance string }

func (n *Node) traces() traces { return traces{n.Dir, n.Instance} }

// residue lists what the pods of this node left.
func residue(n *Node) ([]string, error) {
	inside, err := hygiene.Inside(n.Space)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, l := range n.clean.Diff(inside) {
		if !l.Gone && l.Name != n.State+"/cgroup2" { // what is gone was another's, seen when the space was made
			left = append(left, l.String())
		}
	}
	tr := n.traces()
	err = n.Space.Do(func() error { left = append(left, leftFiles(n)...); return nil })
	if err != nil {
		return nil, err
	}
	left = append(left, tr.podGroups()...)
	return append(left, tr.processes()...), nil
}

// leftFiles lists what lies where pods keep their files. It looks at folders that hold nothing when there is no pod.
func leftFiles(n *Node) []string {
	var left []string
	empty := []string{
		n.Root + "/pods/*", n.Root + "/cni/*/*", n.State + "/pods/*", n.State + "/runtime/*/*",
		"/run/netns/" + n.Instance + "-*", n.Leases + "/*/[0-9]*.*", n.Leases + "/*/*:*",
	}
	for _, pattern := range empty {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if filepath.Base(path) != ".cache" { // crun keeps compiled seccomp filters there, for the next container
				left = append(left, "file "+path)
			}
		}
	}
	return left
}

var idInName = regexp.MustCompile(`[0-9a-f]{64}`)

// podGroups lists the cgroups of pods and operations of this node, in every hierarchy.
func (t traces) podGroups() []string {
	var left []string
	for _, dir := range t.groups() {
		rel, _ := filepath.Rel(filepath.Dir(dir), dir)
		if idInName.MatchString(dir) || filepath.Base(filepath.Dir(dir)) == "ops" {
			left = append(left, "cgroup "+rel+" at "+dir)
		}
	}
	return left
}

// processes lists what runs in the cgroups of this node: monitors, helpers, containers.
func (t traces) processes() []string {
	seen, list := map[string]bool{}, []string(nil)
	for _, dir := range t.groups() {
		pids, _ := os.ReadFile(dir + "/cgroup.procs")
		for _, pid := range strings.Fields(string(pids)) {
			if !seen[pid] && !unpacks(dir, pid) {
				seen[pid] = true
				cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				list = append(list, fmt.Sprintf("process %s: %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
			}
		}
	}
	return list
}

// unpacks says whether a process is the daemon, of which a thread is in the group of its unpackers.
func unpacks(dir, pid string) bool {
	name, _ := os.ReadFile("/proc/" + pid + "/comm")
	return filepath.Base(dir) == "unpack" && string(name) == "berth\n"
}

// erase ends every process of the node and removes its cgroups, namespace pins and folders.
func (t traces) erase() error {
	if t.dir == "" {
		return nil
	}
	errs := []error{t.endProcesses(), t.removeGroups()}
	pins, _ := filepath.Glob("/run/netns/" + t.instance + "-*")
	for _, pin := range pins {
		errs = append(errs, os.Remove(pin))
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}

// removeGroups removes the cgroups. One whose last process is just ending is busy for a moment.
func (t traces) removeGroups() error {
	deadline := time.Now().Add(timeouts.For(30 * time.Second))
	for {
		var errs []error
		for _, dir := range t.groups() {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
			}
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errors.Join(errs...)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (t traces) endProcesses() error {
	deadline := time.Now().Add(timeouts.For(30 * time.Second))
	for {
		found := 0
		for _, dir := range t.groups() {
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
			return fmt.Errorf("processes do not end: %s", strings.Join(t.processes(), "; "))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
