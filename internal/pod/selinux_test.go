package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// policy is a kernel's SELinux that knows containers. Nothing is labelled: this kernel may have none.
type policy struct{}

func (policy) Usual() (process, file string) {
	return "system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"
}

func (policy) Check(label string) error {
	if strings.Contains(label, "unknown_t") {
		return errors.New(label + ": the policy does not allow it")
	}
	return nil
}

func (policy) Label(string, string) error                    { return nil }
func (policy) Relabel(context.Context, string, string) error { return nil }

func given(s bundle.SELinux) func() bundle.SELinux { return func() bundle.SELinux { return s } }

// labelled is a pod that asks for these options. It has the host's IPC, so that no file system is mounted with a label.
func labelled(name string, o *runtimeapi.SELinuxOption) *runtimeapi.PodSandboxConfig {
	cfg := podConfig(name)
	cfg.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	cfg.Linux.SecurityContext.SelinuxOptions = o
	return cfg
}

func openLabelled(t *testing.T) *bench {
	b := open(t)
	b.cfg.Bundle.Labels.SELinux = given(policy{})
	b.reopen(t)
	return b
}

func (b *bench) level(t *testing.T, id sandbox.ID) string {
	t.Helper()
	r, err := b.Catalog.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	want := spec.Labels{Process: "system_u:system_r:container_t:" + r.SELinux.Level(),
		Mount: "system_u:object_r:container_file_t:" + r.SELinux.Level()}
	if r.SELinux != want {
		t.Errorf("labels %+v, want %+v", r.SELinux, want)
	}
	return r.SELinux.Level()
}

// Each pod has categories that no other has, over a restart, until it is removed.
func TestCategoriesAreOnePodsOwn(t *testing.T) {
	b := openLabelled(t)
	b.Pods.cfg.Bundle.Labels.Categories = 5 // of which the last two are nobody's: there are three pairs
	named, err := b.Run(t.Context(), labelled("named", &runtimeapi.SELinuxOption{Level: "s0:c0,c2"}), "")
	if err != nil {
		t.Fatal(err)
	}
	levels := map[string]sandbox.ID{b.level(t, named): named}
	for _, name := range []string{"a", "b"} {
		id, err := b.Run(t.Context(), labelled(name, &runtimeapi.SELinuxOption{}), "")
		if err != nil {
			t.Fatal(err)
		}
		levels[b.level(t, id)] = id
	}
	if len(levels) != 3 || levels["s0:c0,c1"] == "" || levels["s0:c0,c2"] != named || levels["s0:c1,c2"] == "" {
		t.Errorf("three pods have the levels %v", levels)
	}
	b.reopen(t)
	b.Pods.cfg.Bundle.Labels.Categories = 5
	if _, err := b.Run(t.Context(), labelled("c", nil), ""); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "default/c") {
		t.Errorf("a pod for which no categories are left: %v", err)
	}
	for level, id := range levels {
		if got := b.level(t, id); got != level {
			t.Errorf("after a restart the pod has %s, not %s", got, level)
		}
	}
	if err := b.Remove(t.Context(), levels["s0:c1,c2"]); err != nil {
		t.Fatal(err)
	}
	id, err := b.Run(t.Context(), labelled("c", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.level(t, id); got != "s0:c1,c2" {
		t.Errorf("the only categories that are free are not taken, but %s", got)
	}
}

// Two pods may name the same level, because they are to share files.
func TestNamedLevelsMayBeShared(t *testing.T) {
	b := openLabelled(t)
	for i := range 2 {
		id, err := b.Run(t.Context(), labelled(fmt.Sprint(i), &runtimeapi.SELinuxOption{Level: "s0:c7,c9"}), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := b.level(t, id); got != "s0:c7,c9" {
			t.Errorf("got %s", got)
		}
	}
}

// A pod that was made without labels has none for good, and what is made in it neither.
func TestPodWithoutLabelsStaysSo(t *testing.T) {
	b := open(t)
	id, err := b.Run(t.Context(), labelled("a", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	b.cfg.Bundle.Labels.SELinux = given(policy{})
	b.reopen(t)
	r, err := b.Catalog.Get(id)
	if err != nil || r.SELinux != (spec.Labels{}) {
		t.Errorf("%+v, %v", r.SELinux, err)
	}
	if _, err := b.Create(t.Context(), id, withSELinux("c", &runtimeapi.SELinuxOption{Type: "spc_t"})); err != nil {
		t.Fatal(err)
	}
	label := b.drv.created.Spec.Process.SelinuxLabel + b.drv.created.Spec.Linux.MountLabel
	if r, _ = b.Catalog.Get(id); r.SELinux != (spec.Labels{}) || label != "" {
		t.Errorf("a container of it has the label %q", label)
	}
}

// A pod that was made with labels gets no container without.
func TestPodWithLabelsKeepsThem(t *testing.T) {
	b := openLabelled(t)
	id, err := b.Run(t.Context(), labelled("a", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	b.cfg.Bundle.Labels.SELinux = nil
	b.reopen(t)
	if _, err := b.Create(t.Context(), id, containerConfig("c")); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "SELinux") {
		t.Errorf("a container without labels: %v", err)
	}
}

// troubled is a policy that cannot be asked.
type troubled struct {
	policy
	err error
}

func (p troubled) Check(string) error                            { return p.err }
func (p troubled) Relabel(context.Context, string, string) error { return p.err }

// What the node cannot do is no fault of the request, and a caller that gives up is told so.
func TestTroubleWithLabels(t *testing.T) {
	b := openLabelled(t)
	b.Pods.cfg.Bundle.Labels.SELinux = given(troubled{err: unix.EIO})
	if _, err := b.Run(t.Context(), labelled("a", &runtimeapi.SELinuxOption{Type: "spc_t"}),
		""); !errdefs.IsInternal(err) {
		t.Errorf("a pod: %v", err)
	}
	id, err := b.Run(t.Context(), labelled("b", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), id,
		withSELinux("c", &runtimeapi.SELinuxOption{Type: "spc_t"})); !errdefs.IsInternal(err) {
		t.Errorf("a container: %v", err)
	}
}

func withSELinux(name string, o *runtimeapi.SELinuxOption) *runtimeapi.ContainerConfig {
	c := containerConfig(name)
	c.Linux = &runtimeapi.LinuxContainerConfig{
		SecurityContext: &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: o},
	}
	return c
}

func TestBadLabelsAreRefusedBeforeAnythingIsMade(t *testing.T) {
	b := openLabelled(t)
	good, err := b.Run(t.Context(), labelled("good", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*runtimeapi.SELinuxOption{
		{Type: "unknown_t"}, {Type: "a:b"}, {User: "with space"}, {Role: "r,rw"}, {Level: "0"}, {Level: "s0:"},
		{Level: "s0:c1,"}, {Level: `s0",x="`},
	} {
		if _, err := b.Run(t.Context(), labelled("bad", o), ""); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "selinux_options") {
			t.Errorf("pod with %v: %v", o, err)
		}
		if _, err := b.Create(t.Context(), good, withSELinux("bad", o)); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "selinux_options") {
			t.Errorf("container with %v: %v", o, err)
		}
	}
	if x := b.Catalog.index.Load(); len(x.pods) != 1 || len(x.containers) != 0 {
		t.Errorf("%d pods and %d containers are left", len(x.pods), len(x.containers))
	}
	for _, level := range []string{"s0", "s15", "s0:c1", "s0:c1,c3.c5", "s0-s0:c0.c1023", "s1:c2-s3:c2,c4"} {
		if err := spec.CheckSELinux(&runtimeapi.SELinuxOption{User: "staff_u", Role: "system_r", Type: "my_app.process",
			Level: level}); err != nil {
			t.Errorf("%s: %v", level, err)
		}
	}
}
