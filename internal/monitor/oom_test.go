package monitor

import "testing"

// TestOwnedBy finds the cgroup whose counter is the container's: a runtime may have put the process into a group below
// it.
func TestOwnedBy(t *testing.T) {
	const scope = "/cg/kubepods.slice/kubepods-pod1.slice/berth-abc.scope"
	for dir, want := range map[string]string{
		scope:                   scope,
		scope + "/container":    scope,
		"/cg/berth/pod/abc":     "/cg/berth/pod/abc",
		"/cg/berth/pod/abc/a/b": "/cg/berth/pod/abc",
		"/cg/system.slice":      "/cg/system.slice",
	} {
		if got := ownedBy(dir, "abc"); got != want {
			t.Errorf("%s: %s, wanted %s", dir, got, want)
		}
	}
}
