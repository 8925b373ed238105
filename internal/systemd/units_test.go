package systemd

import (
	"strings"
	"testing"
)

var id = strings.Repeat("0f", 32)

func TestNames(t *testing.T) {
	for _, c := range []struct{ instance, monitors, pod string }{
		{"berth", "berth.slice/berth-monitors.scope", "/berth.slice/berth-pods.slice/berth-pods-" + id + ".slice"},
		{"berth-1f2e3d", "berth.slice/berth-1f2e3d.slice/berth-1f2e3d-monitors.scope",
			"/berth.slice/berth-1f2e3d.slice/berth-1f2e3d-pods.slice/berth-1f2e3d-pods-" + id + ".slice"},
	} {
		u := &Units{Instance: c.instance}
		if got := (&MonitorScope{Instance: c.instance}).Group(); got != c.monitors {
			t.Errorf("the monitors of %s are in %s, not %s", c.instance, got, c.monitors)
		}
		if got := u.Parent(id); got != c.pod {
			t.Errorf("a pod of %s is in %s, not %s", c.instance, got, c.pod)
		}
	}
}
