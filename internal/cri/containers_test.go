package cri

import (
	"math"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// TestSeconds wants a timeout that does not fit into nanoseconds to be a long one.
func TestSeconds(t *testing.T) {
	for n, want := range map[int64]time.Duration{
		math.MinInt64: 0, -1: 0, 0: 0, 30: 30 * time.Second,
		10_000_000_000: longest, math.MaxInt64/int64(time.Second) + 1: longest, math.MaxInt64: longest,
	} {
		if got := seconds(n); got != want {
			t.Errorf("%d s are %v, wanted %v", n, got, want)
		}
	}
}

// TestCheckPrivileged wants a privileged container to be taken where the pod is privileged by its record or by the
// request, as of a kubelet that adds a privileged ephemeral container.
func TestCheckPrivileged(t *testing.T) {
	pod := func(privileged bool) *runtimeapi.PodSandboxConfig {
		return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Privileged: privileged},
		}}
	}
	for _, c := range []struct{ record, request, container, refused bool }{
		{false, false, true, true}, {false, true, true, false}, {true, false, true, false}, {true, true, true, false},
		{false, false, false, false}, {false, true, false, false},
	} {
		cfg, err := sandbox.NewPodConfig(pod(c.record))
		if err != nil {
			t.Fatal(err)
		}
		req := &runtimeapi.CreateContainerRequest{SandboxConfig: pod(c.request), Config: &runtimeapi.ContainerConfig{
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Privileged: c.container},
			},
		}}
		get := func(sandbox.ID) (*sandbox.Record, error) { return &sandbox.Record{Config: cfg}, nil }
		err = checkPrivileged(get, "p", req)
		if c.refused != (err != nil) || c.refused && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := checkPrivileged(nil, "p", &runtimeapi.CreateContainerRequest{}); err != nil {
		t.Errorf("a request of nothing: %v", err)
	}
}
