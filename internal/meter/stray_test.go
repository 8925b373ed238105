package meter

import (
	"testing"
	"time"

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

// TestStraysOfAPart has walks see a part of a layer: what one before has found is not forgotten, and the next may take
// longer.
func TestStraysOfAPart(t *testing.T) {
	var w StrayWatch
	if !w.set("c", stray{inodes: 5, bytes: 50}, true) {
		t.Error("the first ones are not new")
	}
	w.set("c", stray{inodes: 0, bytes: 0}, true)
	if got := w.of("c"); got.inodes != 5 || got.bytes != 50 {
		t.Errorf("after a walk of a part they are %+v", got)
	}
	w.set("c", stray{}, false)
	if got := w.of("c"); got != (stray{}) {
		t.Errorf("after a walk of all they are %+v", got)
	}
	for _, want := range []time.Duration{strayFirst, 2 * strayFirst, 4 * strayFirst} {
		if got := w.limit("c"); got != want {
			t.Errorf("a walk may take %v, wanted %v", got, want)
		}
		w.cutOff("c", w.limit("c"))
	}
	w.cutOff("c", strayMost)
	if got := w.limit("c"); got != strayMost {
		t.Errorf("a walk may take %v at most, wanted %v", got, strayMost)
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
