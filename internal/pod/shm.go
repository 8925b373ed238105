package pod

import (
	"cmp"
	"math"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/quantity"
	"berth/internal/spec"
)

// The annotations of a pod that say how large its /dev/shm is, as a quantity of bytes ("128Mi"). The second is CRI-O's,
// for pods that come from there; the first counts where both are set.
const (
	ShmSizeAnnotation     = "pod.berth/shm-size"
	crioShmSizeAnnotation = "io.kubernetes.cri-o.ShmSize"
)

// defaultShmSize is how many bytes /dev/shm has where nobody says it, as with containerd and CRI-O.
const defaultShmSize = 64 << 20

// shmSize is how many bytes a pod's /dev/shm has: as its annotation says, or its handler's shm_size, or 64 MiB. What is
// used of it counts to the memory of the container that writes it.
func shmSize(cfg *runtimeapi.PodSandboxConfig, h spec.Handler) (int64, error) {
	name := ShmSizeAnnotation
	value, said := cfg.Annotations[name]
	if !said {
		name = crioShmSizeAnnotation
		value, said = cfg.Annotations[name]
	}
	if !said {
		return cmp.Or(h.ShmSize, defaultShmSize), nil
	}
	size, err := quantity.Parse(value)
	switch {
	case err != nil:
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: %w", name, value, err)
	case size == 0 || size > math.MaxInt64: // 0 would be half of the node's memory
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: /dev/shm has from 1 byte to 8 EiB",
			name, value)
	case h.MaxShmSize > 0 && size > uint64(h.MaxShmSize):
		return 0, fail.New(errdefs.ErrInvalidArgument,
			"annotation %s: %q is more than the %d bytes that max_shm_size allows pods of this runtime handler",
			name, value, h.MaxShmSize)
	}
	return int64(size), nil
}
