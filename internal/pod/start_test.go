package pod

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// TestStartWaitsForAMonitor has no monitor answer for a moment: the container may run, and is not killed for that.
func TestStartWaitsForAMonitor(t *testing.T) {
	b := open(t)
	b.drv.silent = 3
	_, ctr := started(t, b)
	if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.State != sandbox.Running {
		t.Fatalf("got %+v, %v", c, err)
	}
	if b.drv.killed > 0 || b.drv.silent > 0 {
		t.Errorf("it was killed %d times, and %d answers are left", b.drv.killed, b.drv.silent)
	}
}

func containerConfig(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "img"},
		Command: []string{"x"}, Linux: &runtimeapi.LinuxContainerConfig{},
	}
}
