package node

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"berth/internal/cgroup"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupDriver is the one that the daemon is told to use, "" when it chooses.
func (o *Options) cgroupDriver() string {
	return cmp.Or(o.Cgroups, os.Getenv("BERTH_TEST_CGROUP"))
}

// Groups says how cgroups are called on a node.
type Groups struct {
	Systemd  bool // it is the cgroup driver
	instance string
}

// GroupsOf says how cgroups are called on n.
func GroupsOf(n *Node) Groups {
	driver := n.options.cgroupDriver()
	if driver == "" && cgroup.Mode() == cgroup.V2 {
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			driver = "systemd"
		}
	}
	return Groups{driver == "systemd", n.Instance}
}

// KubePod is the cgroup that a kubelet would make for a pod.
func (g Groups) KubePod(name string) string {
	if !g.Systemd {
		return "/" + g.instance + "-kube/burstable/" + name
	}
	path, err := cgroup.SlicePath(g.instance + "-kube-" + strings.ReplaceAll(name, "-", "_") + ".slice")
	if err != nil {
		panic(err)
	}
	return path
}

// Container is how a container's cgroup is called.
func (g Groups) Container(id string) string {
	if g.Systemd {
		return g.instance + "-" + id + ".scope"
	}
	return id
}

// groups lists every cgroup of this node, deepest first. Those of the trials of runtimes, which a daemon that is killed
// in the middle of one leaves to the next, are called as their directories are.
func (t traces) groups() []string {
	var all []string
	names := []string{"/" + t.instance}
	trials, _ := filepath.Glob(t.dir + "/*/berth-trial-*")
	for _, dir := range trials {
		names = append(names, "/"+filepath.Base(dir))
	}
	// Groups come and go while one walks; what has gone is not there, which is no error.
	_ = filepath.WalkDir(cgroupRoot, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.ContainsFunc(names, func(name string) bool {
			return strings.Contains(strings.TrimPrefix(path, cgroupRoot), name)
		}) {
			all = append(all, path)
		}
		return nil
	})
	sort.Slice(all, func(i, j int) bool { return len(all[i]) > len(all[j]) })
	return all
}
