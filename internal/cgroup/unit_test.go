package cgroup

import (
	"strings"
	"testing"
)

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
	for _, bad := range []string{"", ".slice", "kubepods", "/kubepods.slice", "a/b.slice", "a--b.slice", "-a.slice", "a-.slice", "x.scope"} {
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
