package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"berth/test/hygiene"
)

// Close removes every pod, checks that nothing of them is left, stops the daemon, and removes the node. The error names
// everything that was left behind.
func (n *Node) Close() error {
	var errs []error
	if d := n.current(); d == nil || d.ended() {
		if err := n.Start(); err != nil {
			return errors.Join(err, n.discard())
		}
	}
	errs = append(errs, n.RemoveAll())
	errs = append(errs, n.Clean(5*time.Second))
	errs = append(errs, n.Stop())
	if len(n.processes()) > 0 {
		errs = append(errs, fmt.Errorf("processes outlive the pods and the daemon: %s", strings.Join(n.processes(), "; ")))
	}
	return errors.Join(errors.Join(errs...), n.discard())
}

// RemoveAll stops and removes every pod that the daemon lists.
func (n *Node) RemoveAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pods, err := n.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for _, p := range pods {
		if err := n.Runtime.StopPodSandbox(ctx, p.Id); err != nil {
			errs = append(errs, fmt.Errorf("stop pod %s: %w", p.Metadata.GetName(), err))
		}
		if err := n.Runtime.RemovePodSandbox(ctx, p.Id); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s: %w", p.Metadata.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// Clean checks that nothing of any pod is left, when there should be none: no mount, link, filter rule, network
// namespace, cgroup, process, lease or file. What is still ending has until patience is over.
func (n *Node) Clean(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left, err := n.residue()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left behind by pods that were removed (%s):\n  %s", n.Instance, strings.Join(left, "\n  "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// residue lists what the pods of this node left.
func (n *Node) residue() ([]string, error) {
	inside, err := hygiene.Inside(n.Space)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, l := range n.clean.Diff(inside) {
		if l.Name != n.State+"/cgroup2" {
			left = append(left, l.String())
		}
	}
	left = append(left, n.leftFiles()...)
	left = append(left, n.leftGroups()...)
	left = append(left, n.processes()...)
	return left, nil
}

// leftFiles lists what lies where pods keep their files. It looks at folders that hold nothing when there is no pod.
func (n *Node) leftFiles() []string {
	var left []string
	empty := []string{
		n.Root + "/pods/*", n.Root + "/cni/*/*", n.State + "/pods/*", n.State + "/runtime/*/*",
		"/run/netns/" + n.Instance + "-*", n.Leases + "/*/[0-9]*.*", n.Leases + "/*/*:*",
	}
	for _, pattern := range empty {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			left = append(left, "file "+path)
		}
	}
	return left
}

var idInName = regexp.MustCompile(`[0-9a-f]{64}`)

// leftGroups lists the cgroups of pods and operations of this node, in every hierarchy.
func (n *Node) leftGroups() []string {
	var left []string
	for _, dir := range n.groups() {
		rel, _ := filepath.Rel(filepath.Dir(dir), dir)
		if idInName.MatchString(dir) || filepath.Base(filepath.Dir(dir)) == "ops" {
			left = append(left, "cgroup "+rel+" at "+dir)
		}
	}
	return left
}

// groups lists every cgroup of this node, deepest first.
func (n *Node) groups() []string {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + n.Instance + "*")
	single, _ := filepath.Glob("/sys/fs/cgroup/" + n.Instance + "*")
	var all []string
	for _, root := range append(roots, single...) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
	}
	sort.Slice(all, func(i, j int) bool { return len(all[i]) > len(all[j]) })
	return all
}

// processes lists what runs in the cgroups of this node: monitors, helpers, containers.
func (n *Node) processes() []string {
	seen, list := map[string]bool{}, []string(nil)
	for _, dir := range n.groups() {
		pids, _ := os.ReadFile(dir + "/cgroup.procs")
		for _, pid := range strings.Fields(string(pids)) {
			if !seen[pid] {
				seen[pid] = true
				cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				list = append(list, fmt.Sprintf("process %s: %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
			}
		}
	}
	return list
}

// discard takes the node down, whatever state it is in.
func (n *Node) discard() error {
	n.disconnect()
	if d := n.current(); d != nil && !d.ended() {
		_ = n.Kill9()
	}
	for _, l := range n.listeners {
		_ = l.Close()
	}
	if keep := os.Getenv("BERTH_KEEP_LOGS"); keep != "" && n.Dir != "" {
		_ = os.MkdirAll(keep, 0o755)
		_ = os.Rename(n.Dir+"/daemon.log", filepath.Join(keep, filepath.Base(n.Dir)+".log"))
	}
	errs := []error{n.erase()}
	if n.Space != nil {
		errs = append(errs, n.Space.Close())
	}
	return errors.Join(errs...)
}
