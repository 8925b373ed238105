package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPathOf finds this process in the cgroup that is told, in each hierarchy that is mounted whole.
func TestPathOf(t *testing.T) {
	hierarchies, err := mounted()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, h := range hierarchies {
		controllers := h.controllers
		if h.v2 {
			controllers = []string{""}
		}
		for _, controller := range controllers {
			path, err := PathOf(os.Getpid(), controller)
			if err != nil {
				t.Error(err)
				continue
			}
			pids, err := os.ReadFile(filepath.Join(h.dir, path, "cgroup.procs"))
			if err != nil {
				continue // a part of it is mounted
			}
			if found++; !bytes.Contains(pids, fmt.Appendf(nil, "%d\n", os.Getpid())) {
				t.Errorf("%q: this process is not in %s", controller, path)
			}
		}
	}
	if found == 0 {
		t.Error("this process is in no cgroup")
	}
	if path, err := PathOf(os.Getpid(), "no such"); err == nil || !strings.Contains(err.Error(), "no such hierarchy") {
		t.Errorf("a controller that there is none of: %s, %v", path, err)
	}
}

func TestSlicePath(t *testing.T) {
	for slice, want := range map[string]string{
		"-.slice":                           "/",
		"system.slice":                      "/system.slice",
		"kubepods.slice":                    "/kubepods.slice",
		"kubepods-burstable-pod0f_1e.slice": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f_1e.slice",
	} {
		if got, err := SlicePath(slice); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", slice, got, err, want)
		}
	}
	for _, bad := range []string{"", ".slice", "kubepods", "/kubepods.slice", "a/b.slice", "a--b.slice", "-a.slice",
		"a-.slice", "x.scope"} {
		if got, err := SlicePath(bad); err == nil || !strings.Contains(err.Error(), "slice") {
			t.Errorf("%q gave %q, %v", bad, got, err)
		}
	}
}

func TestScopePath(t *testing.T) {
	for oci, want := range map[string]string{
		"kubepods-pod12.slice:berth:abc": "/kubepods.slice/kubepods-pod12.slice/berth-abc.scope",
		":berth:abc":                     "/system.slice/berth-abc.scope",
		"-.slice:berth-1f:abc":           "/berth-1f-abc.scope",
	} {
		if got, err := ScopePath(oci); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", oci, got, err, want)
		}
	}
	for _, bad := range []string{"", "/berth/pod/ctr", "a.slice:berth", "a.slice:berth:", "a:berth:c", "a.slice:b:c:d"} {
		if got, err := ScopePath(bad); err == nil {
			t.Errorf("%q gave %q", bad, got)
		}
	}
}

// TestDirectPath wants the place of a parent to be that of the containers in it: under cgroupfs a slice is a name like
// any other.
func TestDirectPath(t *testing.T) {
	d := Direct{Instance: "berth"}
	for parent, want := range map[string]string{
		"/kubepods/burstable/pod-1": "/kubepods/burstable/pod-1", "kubepods": "/kubepods",
		"kubepods-pod1.slice": "/kubepods-pod1.slice",
		d.Parent("1f"):        "/berth/1f",
	} {
		got, err := d.Path(parent)
		if ctr, _ := d.Container(parent, "c"); got != want || err != nil || ctr != want+"/c" {
			t.Errorf("%s: %s, %v, its container in %s; wanted %s", parent, got, err, ctr, want)
		}
	}
	if got, err := d.Path("/"); err == nil {
		t.Errorf("the root is %s", got)
	}
}
