package cri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

var exhausted, invalid = errdefs.ErrResourceExhausted, errdefs.ErrInvalidArgument

// usual is what the configuration says by itself.
var usual = Sizes{Bytes: 8 << 20, Entries: 65536, Labels: 512 << 10}

func asked(t *testing.T, s Sizes, req any) error {
	t.Helper()
	unary, _ := Interceptors(func() Sizes { return s })
	_, err := unary(t.Context(), req, nil, func(context.Context, any) (any, error) { return nil, nil })
	return err
}

// TestHugeRequests asks for a hundred thousand of each thing that can be many, and for a text of megabytes in each
// place.
func TestHugeRequests(t *testing.T) {
	long := strings.Repeat("x", 5<<20)
	many := map[string]string{}
	for i := range 700_000 {
		many[fmt.Sprint(i)] = ""
	}
	ctr := func(c *runtimeapi.ContainerConfig) any { return &runtimeapi.CreateContainerRequest{Config: c} }
	pod := func(c *runtimeapi.PodSandboxConfig) any { return &runtimeapi.RunPodSandboxRequest{Config: c} }
	security := &runtimeapi.LinuxContainerSecurityContext{SupplementalGroups: make([]int64, 100_000)}
	for name, c := range map[string]struct {
		req  any
		kind error
		by   limit.Budget
	}{
		"labels": {pod(&runtimeapi.PodSandboxConfig{Labels: many}),
			exhausted, limit.RequestEntries},
		"annotations": {ctr(&runtimeapi.ContainerConfig{Annotations: map[string]string{"a": long}}),
			exhausted, limit.RequestLabels},
		"key": {ctr(&runtimeapi.ContainerConfig{Annotations: map[string]string{long: "a"}}),
			exhausted, limit.RequestLabels},
		"selector": {&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"a": long}}}, exhausted, limit.RequestLabels},
		"variables": {ctr(&runtimeapi.ContainerConfig{Envs: slices.Repeat([]*runtimeapi.KeyValue{{Key: "a"}}, 100_000)}),
			exhausted, limit.RequestEntries},
		"mounts": {ctr(&runtimeapi.ContainerConfig{Mounts: slices.Repeat([]*runtimeapi.Mount{{}}, 100_000)}),
			exhausted, limit.RequestEntries},
		"devices": {ctr(&runtimeapi.ContainerConfig{Devices: slices.Repeat([]*runtimeapi.Device{{}}, 100_000)}),
			exhausted, limit.RequestEntries},
		"CDI devices": {ctr(&runtimeapi.ContainerConfig{CDIDevices: slices.Repeat([]*runtimeapi.CDIDevice{{}}, 100_000)}),
			exhausted, limit.RequestEntries},
		"args": {ctr(&runtimeapi.ContainerConfig{Args: make([]string, 100_000)}),
			exhausted, limit.RequestEntries},
		"groups": {ctr(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: security}}),
			exhausted, limit.RequestEntries},
		"sysctls": {pod(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls: map[string]string{"net.x": long}}}),
			exhausted, limit.RequestLabels},
		"ports": {pod(&runtimeapi.PodSandboxConfig{PortMappings: slices.Repeat([]*runtimeapi.PortMapping{{}}, 100_000)}),
			exhausted, limit.RequestEntries},
		"name servers": {pod(&runtimeapi.PodSandboxConfig{
			DnsConfig: &runtimeapi.DNSConfig{Servers: make([]string, 100_000)}}),
			exhausted, limit.RequestEntries},
		"search domain": {pod(&runtimeapi.PodSandboxConfig{DnsConfig: &runtimeapi.DNSConfig{Searches: []string{long}}}),
			invalid, limit.RequestText},
		"log path": {ctr(&runtimeapi.ContainerConfig{LogPath: long}),
			invalid, limit.RequestText},
		"directory": {pod(&runtimeapi.PodSandboxConfig{LogDirectory: long}),
			invalid, limit.RequestText},
		"name": {pod(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: long}}),
			invalid, limit.RequestText},
		"path of a mount": {ctr(&runtimeapi.ContainerConfig{Mounts: []*runtimeapi.Mount{{HostPath: long}}}),
			invalid, limit.RequestText},
		"id": {&runtimeapi.ContainerStatusRequest{ContainerId: long},
			invalid, limit.RequestText},
		"image": {&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: long}},
			invalid, limit.RequestText},
		"token": {&runtimeapi.PullImageRequest{Auth: &runtimeapi.AuthConfig{RegistryToken: long}},
			invalid, limit.RequestCredential},
		"command": {&runtimeapi.ExecSyncRequest{Cmd: make([]string, 100_000)},
			exhausted, limit.RequestEntries},
		"all of it": {&runtimeapi.ExecSyncRequest{Cmd: []string{long, long}},
			exhausted, limit.RequestBytes},
	} {
		err := asked(t, usual, c.req)
		if !fail.Is(err, c.kind) || fail.Details(err).Limit != c.by.Name || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v, wanted %s", name, err, c.by.Name)
		}
	}
}

// TestLargestRequest asks for as much as a cluster may bring about: 5000 services as variables, 256 KiB of annotations,
// a port range, a token of a cloud's registry.
func TestLargestRequest(t *testing.T) {
	var envs []*runtimeapi.KeyValue
	for i := range 35_000 {
		envs = append(envs, &runtimeapi.KeyValue{
			Key: fmt.Sprintf("A_SERVICE_%d_PORT_80_TCP_ADDR", i), Value: []byte("10.0.0.1")})
	}
	annotations := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 256<<10)}
	for _, req := range []any{
		&runtimeapi.CreateContainerRequest{
			Config: &runtimeapi.ContainerConfig{Envs: envs,
				Args: []string{strings.Repeat("x", 128<<10-1)}, Annotations: annotations},
			SandboxConfig: &runtimeapi.PodSandboxConfig{Annotations: annotations,
				PortMappings: slices.Repeat([]*runtimeapi.PortMapping{{HostPort: 1}}, 20_000)},
		},
		&runtimeapi.PullImageRequest{Auth: &runtimeapi.AuthConfig{Password: strings.Repeat("x", 16<<10)}},
		&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{LogDirectory: "/" + strings.Repeat("x", 4094)}},
		"no message of CRI",
	} {
		if err := asked(t, usual, req); err != nil {
			t.Error(err)
		}
	}
}

// TestEachListIsBounded fills each list of each message of CRI, so that one of a later release is not forgotten.
func TestEachListIsBounded(t *testing.T) {
	all, seen := (&runtimeapi.RunPodSandboxRequest{}).ProtoReflect().Descriptor().ParentFile().Messages(), 0
	for i := range all.Len() {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(all.Get(i).FullName())
		if err != nil {
			t.Fatal(err)
		}
		for j := range all.Get(i).Fields().Len() {
			f := all.Get(i).Fields().Get(j)
			if !f.IsList() {
				continue
			}
			m := kind.New()
			list := m.Mutable(f).List()
			for range 3 {
				list.Append(list.NewElement())
			}
			seen++
			err := asked(t, Sizes{Entries: 2}, m.Interface())
			if !fail.Is(err, exhausted) || !strings.Contains(err.Error(), string(f.Name())) {
				t.Errorf("%s: %v", f.FullName(), err)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d lists were looked at", seen)
	}
}

// TestUnknownValues asks for a value that CRI does not define in each enum of a pod's and a container's configuration.
func TestUnknownValues(t *testing.T) {
	sandbox := func(o *runtimeapi.NamespaceOption) any {
		security := &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o}
		return &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: security}}}
	}
	ctr := func(c *runtimeapi.LinuxContainerSecurityContext) any {
		return &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c}}}
	}
	of := "config.linux.security_context."
	for name, req := range map[string]any{
		of + "namespace_options.network": sandbox(&runtimeapi.NamespaceOption{Network: 9}),
		of + "namespace_options.pid":     sandbox(&runtimeapi.NamespaceOption{Pid: 9}),
		of + "namespace_options.ipc":     sandbox(&runtimeapi.NamespaceOption{Ipc: -9}),
		of + "namespace_options.userns_options.mode": sandbox(&runtimeapi.NamespaceOption{
			UsernsOptions: &runtimeapi.UserNamespace{Mode: 9}}),
		"config.port_mappings.protocol": &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			PortMappings: []*runtimeapi.PortMapping{{}, {Protocol: 7}}}},
		"config.mounts.propagation": &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
			Mounts: []*runtimeapi.Mount{{Propagation: 3}}}},
		of + "seccomp.profile_type": ctr(&runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: 3}}),
		of + "apparmor.profile_type": ctr(&runtimeapi.LinuxContainerSecurityContext{
			Apparmor: &runtimeapi.SecurityProfile{ProfileType: 3}}),
	} {
		if err := asked(t, usual, req); !fail.Is(err, invalid) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := asked(t, usual, sandbox(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET})); err != nil {
		t.Errorf("a known value: %v", err)
	}
	later := &runtimeapi.ContainerStateValue{State: 9}
	err := asked(t, usual, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{State: later}})
	if err != nil {
		t.Errorf("a filter for a state of a later CRI: %v", err)
	}
}
