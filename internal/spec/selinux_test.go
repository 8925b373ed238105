package spec

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSELinuxLabels is which labels each request gets.
func TestSELinuxLabels(t *testing.T) {
	const host = runtimeapi.NamespaceMode_NODE
	pod := Labels{Process: "system_u:system_r:container_t:s0:c1,c2", Mount: "system_u:object_r:container_file_t:s0:c1,c2"}
	files := pod.Mount
	for name, c := range map[string]struct {
		pod, ctr   *runtimeapi.SELinuxOption
		ns         *runtimeapi.NamespaceOption
		privileged bool
		off, bare  bool // the host's SELinux is off, the pod has no labels
		want       Labels
	}{
		"nothing": {want: pod},
		"a type": {ctr: &runtimeapi.SELinuxOption{Type: "my_t"},
			want: Labels{"system_u:system_r:my_t:s0:c1,c2", files}},
		"a level": {ctr: &runtimeapi.SELinuxOption{Level: "s0:c3"},
			want: Labels{"system_u:system_r:container_t:s0:c3", "system_u:object_r:container_file_t:s0:c3"}},
		"a user": {ctr: &runtimeapi.SELinuxOption{User: "me_u"},
			want: Labels{"me_u:system_r:container_t:s0:c1,c2", "me_u:object_r:container_file_t:s0:c1,c2"}},
		"privileged": {privileged: true, want: Labels{"", files}},
		"privileged with a type": {privileged: true, ctr: &runtimeapi.SELinuxOption{Type: "my_t"},
			want: Labels{"", files}},
		"host's PID namespace": {ns: &runtimeapi.NamespaceOption{Pid: host}, want: Labels{"", files}},
		"host's IPC namespace": {ns: &runtimeapi.NamespaceOption{Ipc: host}, want: Labels{"", files}},
		"host's network":       {ns: &runtimeapi.NamespaceOption{Network: host}, want: pod},
		"host's PIDs with a type": {ns: &runtimeapi.NamespaceOption{Pid: host},
			ctr: &runtimeapi.SELinuxOption{Type: "my_t"}, want: Labels{"system_u:system_r:my_t:s0:c1,c2", files}},
		"host's PIDs with a pod's type": {ns: &runtimeapi.NamespaceOption{Pid: host},
			pod: &runtimeapi.SELinuxOption{Type: "container_t"}, want: pod},
		"host's PIDs with a level": {ns: &runtimeapi.NamespaceOption{Pid: host}, ctr: &runtimeapi.SELinuxOption{Level: "s0"},
			want: Labels{"", "system_u:object_r:container_file_t:s0"}},
		"off":           {off: true, ctr: &runtimeapi.SELinuxOption{Type: "my_t"}},
		"a pod without": {bare: true, ctr: &runtimeapi.SELinuxOption{Type: "my_t"}},
	} {
		b := &build{Input: Input{Host: Host{SELinux: !c.off}, SELinux: pod}, privileged: c.privileged,
			out: &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}}
		if c.bare {
			b.SELinux = Labels{}
		}
		b.security = &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: c.ctr, NamespaceOptions: c.ns}
		b.Pod = &runtimeapi.PodSandboxConfig{
			Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				SelinuxOptions: c.pod, NamespaceOptions: c.ns,
			}}}
		b.labels()
		if got := (Labels{b.out.Process.SelinuxLabel, b.out.Linux.MountLabel}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
