package bundle

import (
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// A configuration that is loaded anew while a container is made has no say in half of it: what it forbade stays
// forbidden.
func TestHandlerAndItsSpecAreOfOneMoment(t *testing.T) {
	old := spec.Handler{PrivilegedWithoutHostDevices: true}
	var reloaded bool
	find := func(string) (runtime.Handler, error) {
		defer func() { reloaded = true }()
		if reloaded {
			return runtime.Handler{}, errdefs.ErrNotFound
		}
		return runtime.Handler{Name: "runc", Path: "/bin/true"}, nil
	}
	handlers := Handlers{Find: find, Spec: func(name string) (runtime.Handler, spec.Handler, error) {
		was := reloaded
		h, err := find(name)
		if was {
			return h, spec.Handler{}, err
		}
		return h, old, err
	}}
	for what, using := range map[string]*runtime.Handler{
		"as it was": {Name: "runc", Path: "/bin/true"}, "moved": {Name: "runc", Path: "/no/such"},
		"of an earlier release": nil,
	} {
		reloaded = false
		h, sh, err := handlers.ForNew(&sandbox.Record{Runtime: "runc", Using: using})
		if err != nil || !sh.PrivilegedWithoutHostDevices || h.Path != "/bin/true" {
			t.Errorf("%s: %+v, %+v, %v", what, h, sh, err)
		}
	}
}
