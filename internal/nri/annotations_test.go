package nri

import (
	"maps"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestAnnotationsOfAContainer shows plugins those of the request, also where the runtime does not get to see them, and
// those of the spec, which are stronger.
func TestAnnotationsOfAContainer(t *testing.T) {
	asked := map[string]string{"plugin.example/class": "gold", "io.kubernetes.cri.sandbox-id": "forged"}
	out := &api.Container{Annotations: asked, Linux: &api.LinuxContainer{}}
	fill(out, &specs.Spec{Annotations: map[string]string{"io.kubernetes.cri.sandbox-id": "own"}})
	want := map[string]string{"plugin.example/class": "gold", "io.kubernetes.cri.sandbox-id": "own"}
	if !maps.Equal(out.Annotations, want) || asked["io.kubernetes.cri.sandbox-id"] != "forged" {
		t.Errorf("%v of %v, wanted %v", out.Annotations, asked, want)
	}
}
