package systemd

import (
	"strings"
	"testing"
)

var id = strings.Repeat("0f", 32)

func TestNames(t *testing.T) {
	for _, c := range []struct{ instance, home, pod string }{
		{"berth", "berth.slice/berth-monitors.scope", "/berth.slice/berth-pods.slice/berth-pods-" + id + ".slice"},
		{"berth-1f2e3d", "berth.slice/berth-1f2e3d.slice/berth-1f2e3d-monitors.scope", "/berth.slice/berth-1f2e3d.slice/berth-1f2e3d-pods.slice/berth-1f2e3d-pods-" + id + ".slice"},
	} {
		u := &Units{Instance: c.instance}
		if got := u.Home(); got != c.home {
			t.Errorf("the monitors of %s are in %s, not %s", c.instance, got, c.home)
		}
		if got := u.Parent(id); got != c.pod {
			t.Errorf("a pod of %s is in %s, not %s", c.instance, got, c.pod)
		}
	}
}

func TestContainer(t *testing.T) {
	u := &Units{Instance: "berth"}
	const slice = "kubepods-burstable-pod0f_1e.slice"
	for _, parent := range []string{slice, "/kubepods.slice/kubepods-burstable.slice/" + slice} {
		if got, err := u.Container(parent, "abc"); got != slice+":berth:abc" || err != nil {
			t.Errorf("%s: %s, %v", parent, got, err)
		}
	}
	for _, parent := range []string{"/kubepods/burstable/pod1", "kubepods", "/", ".slice", "x.service"} {
		if got, err := u.Container(parent, "abc"); err == nil || !strings.Contains(err.Error(), "cgroupDriver") {
			t.Errorf("%s: %s, %v: the error does not say what to change", parent, got, err)
		}
	}
}
