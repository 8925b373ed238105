package pod

import (
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime"
	"berth/internal/spec"
)

// handlerSpec configures nothing of a handler's containers.
func (b *bench) handlerSpec(name string) (runtime.Handler, spec.Handler, error) {
	h, err := b.cfg.Handlers(name)
	return h, spec.Handler{}, err
}

// What a pod has is unmade by the handler with which it was made, also when that was taken out of the configuration; a new
// container, of which nobody can say what it may, is refused.
func TestHandlerTakenOutOfTheConfiguration(t *testing.T) {
	b := open(t)
	b.cfg.Init = "/bin/true"
	b.reopen(t)
	cfg := podConfig("a")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD // so that it has an init
	id, err := b.Run(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := b.Create(t.Context(), id, containerConfig("c"))
	if err != nil {
		t.Fatal(err)
	}
	b.drv.inv.Containers = map[string]runtime.Found{string(id): {State: runtime.Running}, string(ctr): {State: runtime.Created}}
	b.unconfigured.Store(true)
	b.reopen(t)
	if _, err := b.Create(t.Context(), id, containerConfig("d")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a new container: %v", err)
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Errorf("remove: %v", err)
	}
}

// A configuration that is loaded anew while a container is made has no say in half of it: what it forbade stays forbidden.
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
	c := Config{Handlers: find, HandlerSpec: func(name string) (runtime.Handler, spec.Handler, error) {
		was := reloaded
		h, err := find(name)
		if was {
			return h, spec.Handler{}, err
		}
		return h, old, err
	}}
	for what, using := range map[string]*runtime.Handler{
		"as it was": {Name: "runc", Path: "/bin/true"}, "moved": {Name: "runc", Path: "/no/such"}, "of an earlier release": nil,
	} {
		reloaded = false
		h, sh, err := c.handlerSpec(&Record{Runtime: "runc", Using: using})
		if err != nil || !sh.PrivilegedWithoutHostDevices || h.Path != "/bin/true" {
			t.Errorf("%s: %+v, %+v, %v", what, h, sh, err)
		}
	}
}

// A start is bounded by what the configuration says of the handler, as a create is.
func TestStartIsBounded(t *testing.T) {
	b := open(t)
	for configured, want := range map[time.Duration]time.Duration{7 * time.Second: 7 * time.Second, 0: defaultCreateTimeout} {
		b.cfg.Handlers = func(string) (runtime.Handler, error) { return runtime.Handler{Name: "runc", Timeout: configured}, nil }
		b.reopen(t)
		pod, _ := started(t, b)
		b.drv.mu.Lock()
		if b.drv.started != want {
			t.Errorf("a start where %v is configured has %v, not %v", configured, b.drv.started, want)
		}
		b.drv.mu.Unlock()
		if err := b.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}
