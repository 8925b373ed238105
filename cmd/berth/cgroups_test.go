package main

import (
	"regexp"
	"strings"
	"testing"

	"berth/internal/cgroup"
	"berth/internal/systemd"
)

// layout is what stands before and after the id of a container in the path of its cgroup, which ends with both.
type layout struct{ before, after string }

// falco are the layouts by which Falco's plugin "container" (0.7) knows the containers of a CRI runtime.
var falco = []layout{
	{"/", ""}, {"/crio-", ""}, {"/cri-containerd-", ".scope"}, {"/crio-", ".scope"}, {":cri-containerd:", ""},
	{"/docker-", ".scope"},
}

// matches says whether path is of that layout: Falco takes what is between, from the last before to the last after, for
// the id of a container when it is 64 characters long and begins like one.
func (l layout) matches(path string) bool {
	begin := strings.LastIndex(path, l.before)
	end := len(path)
	if l.after != "" {
		end = strings.LastIndex(path, l.after)
	}
	return begin >= 0 && end-begin-len(l.before) == 64 && idAlone.MatchString(path[begin+len(l.before):end])
}

var idAlone = regexp.MustCompile("^[0-9a-f]{64}$")

// TestAgentsKnowContainers wants the cgroups of containers to be called as agents expect it, by each cgroup driver and
// naming. By Berth's own names with systemd Falco knows none, which is what the key is there for.
func TestAgentsKnowContainers(t *testing.T) {
	id, slice := strings.Repeat("0123456789abcdef", 4), "/kubepods.slice/kubepods-pod1.slice/"
	for _, c := range []struct {
		systemd   bool
		naming    cgroup.Naming
		want      string
		falco     bool
		crioAgent bool // by a name of CRI-O's, as its agents look for it
	}{
		{false, cgroup.NamedBerth, "/kubepods/burstable/pod1/" + id, true, false},
		{false, cgroup.NamedContainerd, "/kubepods/burstable/pod1/" + id, true, false},
		{false, cgroup.NamedCRIO, "/kubepods/burstable/pod1/crio-" + id, true, true},
		{true, cgroup.NamedBerth, slice + "berth-" + id + ".scope", false, false},
		{true, cgroup.NamedContainerd, slice + "cri-containerd-" + id + ".scope", true, false},
		{true, cgroup.NamedCRIO, slice + "crio-" + id + ".scope", true, true},
	} {
		g := groups{instance: "berth", naming: c.naming}
		parent := "/kubepods/burstable/pod1"
		if c.systemd {
			parent, g.units = "kubepods-pod1.slice", &systemd.Units{Instance: "berth", Naming: c.naming}
		}
		oci, err := g.driver().Container(parent, id)
		if err != nil {
			t.Fatal(err)
		}
		path, err := cgroup.TreePath(oci)
		if path != c.want || err != nil {
			t.Errorf("systemd %v, %s: %s, %v; wanted %s", c.systemd, c.naming, path, err, c.want)
		}
		known := false
		for _, l := range falco {
			known = known || l.matches(path)
		}
		if known != c.falco {
			t.Errorf("systemd %v, %s: Falco knows %s: %v", c.systemd, c.naming, path, known)
		}
		if got := strings.Contains(path, "/crio-"); got != c.crioAgent {
			t.Errorf("systemd %v, %s: %s is called as CRI-O's: %v", c.systemd, c.naming, path, got)
		}
	}
}
