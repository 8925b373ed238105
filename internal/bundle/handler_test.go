package bundle

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/network"
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

// TestBaseSysctls gives a new pod the sysctls of its handler's base spec, under those that it asks for, and says of one
// that cannot be set whose it is.
func TestBaseSysctls(t *testing.T) {
	b, _ := testBuilder(t)
	base, err := spec.ParseBase([]byte(`{"linux":{"sysctl":{"net.core.somaxconn":"9","kernel.sem":"1 2 3 4"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	find := b.Handlers.Find
	b.Handlers.Spec = func(name string) (runtime.Handler, spec.Handler, error) {
		h, err := find(name)
		return h, spec.Handler{Base: base}, err
	}
	b.Sysctls = func() map[string]string { return map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"} }
	r, _ := record(t, b, &runtimeapi.ContainerConfig{})
	cfg := r.Config.Get()
	cfg.Linux.Sysctls = map[string]string{"net/core/somaxconn": "7"}
	ns, err := b.Pod(r).configured()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"net/core/somaxconn": "7", "kernel.sem": "1 2 3 4"}; !maps.Equal(ns.Sysctls, want) ||
		len(ns.Defaults) != 1 {
		t.Errorf("sysctls %v and defaults %v, wanted %v", ns.Sysctls, ns.Defaults, want)
	}
	if len(cfg.Linux.Sysctls) != 1 {
		t.Errorf("the request is now %v", cfg.Linux.Sysctls)
	}
	const whose = "linux.sysctl of the base spec of runtime handler runc: sysctl kernel.sem=1 2 3 4: no"
	refused := &network.SysctlError{Name: "kernel.sem", Value: "1 2 3 4", Err: errors.New("no")}
	if err := b.Pod(r).explain(refused); !fail.Is(err, errdefs.ErrFailedPrecondition) ||
		!strings.Contains(err.Error(), whose) {
		t.Errorf("a sysctl of the base: %v", err)
	}
	refused.Name = "net/core/somaxconn"
	if err := b.Pod(r).explain(refused); !fail.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a sysctl of the request: %v", err)
	}
}

// TestHandlerThatMakesNothing tells why a handler makes no new containers in the handler's own words; one that is not
// configured any more has words of its own.
func TestHandlerThatMakesNothing(t *testing.T) {
	for err, want := range map[error]string{
		fail.New(errdefs.ErrFailedPrecondition, "its base spec is bad"): "its base spec is bad",
		fail.New(errdefs.ErrNotFound, "none"):                           "was taken out of the configuration",
	} {
		handlers := Handlers{Spec: func(string) (runtime.Handler, spec.Handler, error) {
			return runtime.Handler{}, spec.Handler{}, err
		}}
		_, _, got := handlers.ForNew(&sandbox.Record{Runtime: "runc"})
		if !fail.Is(got, errdefs.ErrFailedPrecondition) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
