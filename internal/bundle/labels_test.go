package bundle

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/look"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// troubled is an SELinux that cannot be asked.
type troubled struct{ err error }

func (troubled) Usual() (process, file string)                   { return "u:r:p:s0", "u:r:f:s0" }
func (p troubled) Check(string) error                            { return p.err }
func (p troubled) Label(string, string) error                    { return p.err }
func (p troubled) Relabel(context.Context, string, string) error { return p.err }

func (p troubled) get() SELinux { return p }

// What the node cannot do is no fault of the request, and a caller that gives up is told so.
func TestTroubleWithRelabelling(t *testing.T) {
	m, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := &sandbox.Record{Config: pod, SELinux: spec.Labels{Process: "u:r:p:s0:c1,c2", Mount: "u:r:f:s0:c1,c2"}}
	mounts := []spec.ResolvedMount{{Mount: &runtimeapi.Mount{ContainerPath: "/data", SelinuxRelabel: true},
		Source: "/data"}}
	for cause, is := range map[error]func(error) bool{
		context.DeadlineExceeded: errdefs.IsDeadlineExceeded, context.Canceled: errdefs.IsCanceled,
		unix.EIO: errdefs.IsInternal,
	} {
		l := Labels{SELinux: troubled{err: cause}.get}
		err := l.relabel(t.Context(), r, &sandbox.Container{Config: m}, mounts, &look.Disks{})
		if !is(err) || errdefs.IsInternal(err) != (cause == error(unix.EIO)) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// A container has no labels where its pod has none, or the node has no SELinux by now.
func TestLabelsOfAContainer(t *testing.T) {
	m, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
		SecurityContext: &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Type: "spc_t"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := &sandbox.Container{Config: m}
	labelled := spec.Labels{Process: "u:r:p:s0:c1,c2", Mount: "u:r:f:s0:c1,c2"}
	for name, of := range map[string]struct {
		l    Labels
		pod  spec.Labels
		want spec.Labels
	}{
		"a pod without labels":   {Labels{SELinux: troubled{}.get}, spec.Labels{}, spec.Labels{}},
		"a node without SELinux": {Labels{}, labelled, spec.Labels{}},
		"a pod with labels": {Labels{SELinux: troubled{}.get}, labelled,
			spec.Labels{Process: "u:r:spc_t:s0:c1,c2", Mount: "u:r:f:s0:c1,c2"}},
	} {
		if got := of.l.of(&sandbox.Record{SELinux: of.pod}, c); got != of.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestRandomLevels(t *testing.T) {
	seen := map[string]bool{}
	for range 2000 {
		var a, b int
		level := randomLevel("s0:c5", 6)
		if n, err := fmt.Sscanf(level, "s0:c%d,c%d", &a, &b); n != 2 || err != nil || a >= b || b > 3 {
			t.Fatalf("%s", level)
		}
		seen[level] = true
	}
	if len(seen) != 6 {
		t.Errorf("of 4 categories there are 6 pairs, and these came: %v", seen)
	}
}
