package meter

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// TestMayLeave says who can leave a project.
func TestMayLeave(t *testing.T) {
	type profile = runtimeapi.SecurityProfile
	usual, userns := podConfig(nil), podConfig(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD})
	for name, c := range map[string]struct {
		pod  *runtimeapi.PodSandboxConfig
		sc   *runtimeapi.LinuxContainerSecurityContext
		want bool
	}{
		"default": {usual, &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &profile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}}, false},
		"nothing said": {usual, nil, true},
		"its own": {usual, &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &profile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/x"}}, true},
		"privileged": {usual, &runtimeapi.LinuxContainerSecurityContext{Privileged: true,
			Seccomp: &profile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}}, true},
		"user namespace": {userns, nil, false},
	} {
		pod, err := sandbox.NewPodConfig(c.pod)
		if err != nil {
			t.Fatal(err)
		}
		ctr, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.sc},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := mayLeave(&sandbox.Record{Config: pod}, &sandbox.Container{Config: ctr})
		if got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// podConfig is of a pod with this user namespace.
func podConfig(userns *runtimeapi.UserNamespace) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: userns},
		},
	}}
}
