package nri

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

func TestLimitsAsPluginsWantThem(t *testing.T) {
	asked := func(limit, swap int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{CpuShares: 512, OomScoreAdj: 7, MemoryLimitInBytes: limit,
			MemorySwapLimitInBytes: swap}
	}
	// The adaptation gives back all that was asked for, with what plugins changed of it.
	from := func(change func(*api.LinuxMemory), want *runtimeapi.LinuxContainerResources) *api.LinuxResources {
		r := fromLimits(want)
		change(r.Memory)
		return r
	}
	limit := func(n int64) func(*api.LinuxMemory) { return func(m *api.LinuxMemory) { m.Limit = api.Int64(n) } }
	both := func(m *api.LinuxMemory) { m.Limit, m.Swap = api.Int64(int64(200)), api.Int64(int64(300)) }
	for name, c := range map[string]struct {
		want *runtimeapi.LinuxContainerResources
		by   *api.LinuxResources
		has  *runtimeapi.LinuxContainerResources
	}{
		"nothing": {asked(100, 100), nil, asked(100, 100)},
		"ignored": {
			asked(100, 100), &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}, Unified: map[string]string{}},
			asked(100, 100)},
		"more, no swap":    {asked(100, 100), from(limit(200), asked(100, 100)), asked(200, 200)},
		"less, no swap":    {asked(100, 100), from(limit(50), asked(100, 100)), asked(50, 50)},
		"more, some swap":  {asked(100, 400), from(limit(200), asked(100, 400)), asked(200, 400)},
		"swap by a plugin": {asked(100, 100), from(both, asked(100, 100)), asked(200, 300)},
		"swap not told":    {asked(100, 0), from(both, asked(100, 0)), asked(200, 300)},
		"none":             {asked(100, 0), from(limit(200), asked(100, 0)), asked(200, 0)},
	} {
		if got := adjust(c.want, limits(c.by)); !proto.Equal(got, c.has) {
			t.Errorf("%s: got %v, wanted %v", name, got, c.has)
		}
	}
}

// TestWhatAContainerIsAskedToBe wants plugins and validators told which filter a container asks for, which class of RDT
// it has, and which image it runs by its digest.
func TestWhatAContainerIsAskedToBe(t *testing.T) {
	const digest = "sha256:0123"
	//lint:ignore SA1019 old clients send it
	old := &runtimeapi.LinuxContainerSecurityContext{SeccompProfilePath: "runtime/default"}
	for name, c := range map[string]struct {
		security *runtimeapi.LinuxContainerSecurityContext
		ref      string
		want     *api.SecurityProfile
		digest   string
	}{
		"nothing": {nil, "sha256:conf", &api.SecurityProfile{ProfileType: api.SecurityProfile_UNCONFINED}, ""},
		"default": {&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{}},
			"docker.io/library/a@" + digest, &api.SecurityProfile{}, digest},
		"a file": {&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"}}, "localhost:5000/a@" + digest,
			&api.SecurityProfile{ProfileType: api.SecurityProfile_LOCALHOST, LocalhostRef: "/p.json"}, digest},
		"an old client": {old, "", &api.SecurityProfile{}, ""},
	} {
		cfg, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.security},
		})
		if err != nil {
			t.Fatal(err)
		}
		sp := &specs.Spec{Linux: &specs.Linux{IntelRdt: &specs.LinuxIntelRdt{ClosID: "gold", Schemata: []string{"L3:0=f"}}}}
		got := messages{}.container(&sandbox.Record{}, &sandbox.Container{Config: cfg, ImageRef: c.ref}, sp)
		if !proto.Equal(got.GetLinux().GetSeccompProfile(), c.want) || got.GetLinux().GetSeccompProfile() == nil {
			t.Errorf("%s: filter %v, wanted %v", name, got.GetLinux().GetSeccompProfile(), c.want)
		}
		if got.GetImage().GetDigest() != c.digest {
			t.Errorf("%s: image %v", name, got.GetImage())
		}
		if rdt := got.GetLinux().GetRdt(); rdt.GetClosId().GetValue() != "gold" || len(rdt.GetSchemata().GetValue()) != 1 {
			t.Errorf("%s: RDT %v", name, rdt)
		}
	}
}
