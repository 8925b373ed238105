package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
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

// TestLimitsAfterAnotherDriver changes the limits of containers that were made while the other cgroup driver was in
// force.
func TestLimitsAfterAnotherDriver(t *testing.T) {
	n := int64(7)
	want := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}}
	units := &systemd.Units{Manager: &systemd.Manager{}, Instance: "berth", Mount: t.TempDir()}
	scope := fmt.Sprintf("berth.slice:berth:test-%d", os.Getpid())
	set := func(g groups, ctr string) error {
		_, err := g.driver().SetLimits(t.Context(), ctr, limits.Was{}, want)
		return err
	}
	// There is no such scope, which it has to have looked for.
	err := set(groups{scopes: units}, scope)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("berth.slice/berth-test-%d.scope/pids.max", os.Getpid())) {
		t.Errorf("a scope, where cgroupfs is the driver now: %v", err)
	}
	if err := set(groups{}, scope); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a scope, where there is no systemd: %v", err)
	}

	path := fmt.Sprintf("/berth-driver-test-%d", os.Getpid())
	at, err := cgroup.Locate(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := at.Unified
	if cgroup.Mode() != cgroup.V2 {
		dir = at.V1["pids"]
	}
	file := filepath.Join(dir, "pids.max")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no cgroup can be made:", err)
	}
	defer func() { _ = os.Remove(dir) }()
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		t.Skip("the pids controller is not on for", dir)
	}
	if err := set(groups{units: units, scopes: units}, path); err != nil {
		t.Errorf("a path, where systemd is the driver now: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "7\n" {
		t.Errorf("%s has %q, %v", file, text, err)
	}
}
