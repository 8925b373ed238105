package spec

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestConsoleOfTheNode wants the node's console allowed to a container only where a runtime has to open it: where the
// container has a terminal and sees the node's /dev at its own.
func TestConsoleOfTheNode(t *testing.T) {
	const (
		dev, terminal, stdin = "/dev", `{"tty":true,`, `{"stdin":true,`
		own                  = `"namespace_options":{"pid":"CONTAINER"}`
		privileged           = own + `,"privileged":true`
	)
	for name, c := range map[string]struct {
		source, path, container, security string
		want                              bool
	}{
		"a terminal in the node's /dev": {dev, dev, terminal, own, true},
		"written otherwise":             {dev, "/dev/.", terminal, own, true},
		"no terminal":                   {dev, dev, stdin, own, false},
		"the node's /dev elsewhere":     {dev, "/host/dev", terminal, own, false},
		"below /dev":                    {"/dev/shm", "/dev/shm", terminal, own, false},
		"something else at /dev":        {"/var/lib/kubelet/pods/p/volumes/v", dev, terminal, own, false},
		"all devices are allowed":       {dev, dev, terminal, privileged, false},
	} {
		security := `"linux":{"security_context":{` + c.security + `}}}`
		in := testInput(t, sections{{"pod", "{" + security}, {"container", c.container + security}})
		m := &runtimeapi.Mount{HostPath: c.source, ContainerPath: c.path}
		in.Container.Mounts, in.Mounts = []*runtimeapi.Mount{m}, []ResolvedMount{{Mount: m, Source: c.source}}
		sp, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		console := func(d specs.LinuxDeviceCgroup) bool {
			return d.Allow && d.Type == "c" && d.Major != nil && *d.Major == 5 && *d.Minor == 1 && d.Access == "rw"
		}
		if got := slices.ContainsFunc(sp.Linux.Resources.Devices, console); got != c.want {
			t.Errorf("%s: the node's console is allowed: %v, wanted %v", name, got, c.want)
		}
		if first := sp.Linux.Resources.Devices[0]; first.Type != "" {
			t.Errorf("%s: the first rule is %+v, not the one for all devices", name, first)
		}
	}
}
