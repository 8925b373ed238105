package spec

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func BenchmarkBuild(b *testing.B) {
	own := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	in := Input{
		Pod: &runtimeapi.PodSandboxConfig{},
		Container: &runtimeapi.ContainerConfig{Command: []string{"true"}, Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: own,
				Seccomp: &runtimeapi.SecurityProfile{}}}},
		Host:  Host{KernelVersion: "6.12", Seccomp: true, DefaultSeccomp: testSeccomp, BoundingCaps: knownCaps},
		Paths: Paths{Rootfs: "/r"},
	}
	for b.Loop() {
		if _, _, err := Build(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
