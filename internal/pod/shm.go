package pod

import (
	"cmp"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/spec"
)

// defaultShmSize is how many bytes /dev/shm has where nobody says it, as with containerd and CRI-O.
const defaultShmSize = 64 << 20

// shmSize is how many bytes a pod's /dev/shm has: as its annotation says, or its handler's shm_size, or 64 MiB. What is
// used of it counts to the memory of the container that writes it.
func shmSize(cfg *runtimeapi.PodSandboxConfig, h spec.Handler) (int64, error) {
	return annotation.ShmSize(cfg.GetAnnotations(), cmp.Or(h.ShmSize, defaultShmSize), h.MaxShmSize)
}
