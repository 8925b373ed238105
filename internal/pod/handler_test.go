package pod

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/runtime"
	"berth/internal/spec"
)

// handlerSpec configures nothing of a handler's containers.
func (b *bench) handlerSpec(name string) (runtime.Handler, spec.Handler, error) {
	h, err := b.cfg.Bundle.Handlers.Find(name)
	return h, spec.Handler{}, err
}

// What a pod has is unmade by the handler with which it was made, also when that was taken out of the configuration; a
// new container, of which nobody can say what it may, is refused.
func TestHandlerTakenOutOfTheConfiguration(t *testing.T) {
	b := open(t)
	b.cfg.Bundle.Init = "/bin/true"
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
	b.drv.inv.Containers = map[string]runtime.Found{string(id): {State: runtime.Running},
		string(ctr): {State: runtime.Created}}
	b.unconfigured.Store(true)
	b.reopen(t)
	if _, err := b.Create(t.Context(), id, containerConfig("d")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a new container: %v", err)
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Errorf("remove: %v", err)
	}
}

// A start is bounded by what the configuration says of the handler, as a create is.
func TestStartIsBounded(t *testing.T) {
	b := open(t)
	for configured, want := range map[time.Duration]time.Duration{7 * time.Second: 7 * time.Second,
		0: 2 * time.Minute} {
		b.cfg.Bundle.Handlers.Find = func(string) (runtime.Handler, error) {
			return runtime.Handler{Name: "runc", Timeout: configured},
				nil
		}
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

// The options of the host's cgroup2 mount are looked at anew for each container of a handler with cgroup_writable, and
// for no other.
func TestDelegationIsLookedForEachTime(t *testing.T) {
	b := open(t)
	var writable, delegated bool
	asked := 0
	b.cfg.Bundle.Host.CgroupV2 = true
	b.cfg.Bundle.Handlers.Spec = func(name string) (runtime.Handler, spec.Handler, error) {
		h, err := b.cfg.Bundle.Handlers.Find(name)
		return h, spec.Handler{CgroupWritable: writable}, err
	}
	b.cfg.Bundle.Delegated = func() (bool, error) { asked++; return delegated, nil }
	b.reopen(t)
	id, err := b.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), id, containerConfig("plain")); err != nil || asked > 0 {
		t.Errorf("without the key: %v, asked %d times", err, asked)
	}
	writable = true
	if _, err := b.Create(t.Context(), id, containerConfig("c")); !errors.Is(err, errdefs.ErrFailedPrecondition) ||
		!strings.Contains(err.Error(), "remount,nsdelegate") {
		t.Errorf("without nsdelegate: %v", err)
	}
	delegated = true // by a remount; the container has no filter yet
	if _, err := b.Create(t.Context(), id, containerConfig("c")); !errors.Is(err, errdefs.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "hostUsers: false") {
		t.Errorf("with nsdelegate: %v", err)
	}
}

// converting converts parents as a driver for systemd does.
type converting struct {
	bundle.CgroupDriver
	removed []string
}

func (s *converting) Path(parent string) (string, error) { return "/slice" + parent, nil }

func (s *converting) Container(parent, ctr string) (string, error) {
	return "slice:" + parent + ":" + ctr, nil
}

func (s *converting) RemoveParent(_ context.Context, parent string) error {
	s.removed = append(s.removed, parent)
	return nil
}

// A cgroup parent is converted for the pods that were made with systemd as the driver: their containers, what is read
// of them and what is removed. Those of an earlier driver stay where they are.
func TestConvertedParent(t *testing.T) {
	for _, systemd := range []bool{true, false} {
		b := open(t)
		s := &converting{CgroupDriver: b.cfg.Bundle.Cgroups}
		b.cfg.Bundle.Cgroups = s
		b.cfg.Bundle.Handlers.Find = func(string) (runtime.Handler, error) {
			return runtime.Handler{Name: "runc", SystemdCgroup: systemd}, nil
		}
		b.reopen(t)
		cfg := podConfig("a")
		cfg.Linux.CgroupParent = "/kubepods/pod1"
		id, err := b.Run(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		ctr, err := b.Create(t.Context(), id, containerConfig("c"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Catalog.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		told := b.Pods.cfg.Bundle.Pod(r).Network()
		got := []string{r.Container(ctr).Cgroup, b.Meter.PodCgroup(r), told.CgroupPath}
		want := []string{"slice:/kubepods/pod1:" + string(ctr), "/slice/kubepods/pod1", "/slice/kubepods/pod1"}
		if !systemd {
			want = []string{"/kubepods/pod1/" + string(ctr), "/kubepods/pod1", "/kubepods/pod1"}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("systemd %v: %v, wanted %v", systemd, got, want)
		}
		if err := b.Remove(t.Context(), id); err != nil || len(s.removed) > 0 != systemd {
			t.Errorf("systemd %v: remove: %v, removed %v", systemd, err, s.removed)
		}
	}
}
