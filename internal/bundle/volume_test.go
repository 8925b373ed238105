package bundle

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestImageMounts takes mounts of images as CRI describes them, and says what is wrong with others.
func TestImageMounts(t *testing.T) {
	named := &runtimeapi.ImageSpec{Image: "r.example/data:v1"}
	for _, c := range []struct {
		mount *runtimeapi.Mount
		words string // "" where it is taken
	}{
		{&runtimeapi.Mount{HostPath: "/srv"}, ""},
		{&runtimeapi.Mount{Image: named, Readonly: true}, ""},
		{&runtimeapi.Mount{Image: named, Readonly: true, ImageSubPath: "a/b"}, ""},
		{&runtimeapi.Mount{HostPath: "/srv", ImageSubPath: "a"}, "without an image"},
		{&runtimeapi.Mount{Image: &runtimeapi.ImageSpec{}, Readonly: true}, "its image has no name"},
		{&runtimeapi.Mount{Image: named, Readonly: true, HostPath: "/srv"}, "only one of them"},
		{&runtimeapi.Mount{Image: named}, "read-only"},
		{&runtimeapi.Mount{Image: named, Readonly: true,
			Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}, "private propagation"},
		{&runtimeapi.Mount{Image: named, Readonly: true, ImageSubPath: "../a"}, "leaves the image"},
		{&runtimeapi.Mount{Image: named, Readonly: true, ImageSubPath: "/a"}, "leaves the image"},
	} {
		err := CheckImageMount(c.mount)
		if c.words == "" && err != nil || c.words != "" && (!errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), c.words)) {
			t.Errorf("%v: %v, want %q", c.mount, err, c.words)
		}
	}
}
