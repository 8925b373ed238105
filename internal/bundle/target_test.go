package bundle

import (
	"errors"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/process"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// TestTargetThatHasEnded has the target of an ephemeral container be a process, and one that had its pid before it.
func TestTargetThatHasEnded(t *testing.T) {
	start, err := process.Start(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began, gone := range map[uint64]bool{start: false, start - 1: true} {
		r := &sandbox.Record{ID: "p", Containers: []*sandbox.Container{{ID: "c", State: sandbox.Running,
			Process: runtime.Process{PID: os.Getpid(), StartTime: began}}}}
		cfg := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "c"}}}}
		path, err := pidNamespace(r, cfg)
		if gone != errors.Is(err, errdefs.ErrFailedPrecondition) || gone != (path == "") {
			t.Errorf("of a process that is gone (%v): %q, %v", gone, path, err)
		}
	}
}
