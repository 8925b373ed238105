package bundle

import (
	"cmp"
	"errors"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

func quotaOf(s *sandbox.Storage) rootfs.Quota { return rootfs.Quota{Bytes: s.Bytes, Inodes: s.Inodes} }

// storageOf is what each container of a pod may write to its root: as the pod's annotations say, or its handler.
func storageOf(cfg *runtimeapi.PodSandboxConfig, h spec.Storage) (s sandbox.Storage, err error) {
	s.Bytes, err = annotation.StorageBytes(cfg.GetAnnotations(), annotation.Bounds{
		Usual: h.Size, Most: h.MaxSize, Least: config.LeastStorageSize,
		UsualKey: "storage_size", MostKey: "max_storage_size",
	})
	if err != nil {
		return s, err
	}
	s.Inodes, err = annotation.StorageInodes(cfg.GetAnnotations(), annotation.Bounds{
		Usual: h.Inodes, Most: h.MaxInodes, Least: config.LeastStorageInodes,
		UsualKey: "storage_inodes", MostKey: "max_storage_inodes",
	})
	return s, err
}

// checkStorage refuses a pod whose annotations are wrong, or whose handler wants limits kept that the file system
// cannot keep.
func (b *Builder) checkStorage(cfg *runtimeapi.PodSandboxConfig, h spec.Storage) error {
	s, err := storageOf(cfg, h)
	if err != nil || s.Unlimited() || !h.Refuse {
		return err
	}
	return b.refuseStorage(rootfs.LimitsProjects(b.Layout.PodsRoot()))
}

// refuseStorage is what a pod is told whose limit is not kept to because of err.
func (b *Builder) refuseStorage(err error) error {
	if err == nil {
		return nil
	}
	remedy := "mount the file system of " + b.Layout.Root + " with project quota (berth doctor says how), or set " +
		"storage_without_quota of the handler to watch"
	return fail.About(fail.Detail{Remedy: remedy}, "the limit of what a container writes: %w",
		fail.New(errdefs.ErrFailedPrecondition, "%w", err))
}

// StorageLimit is what a new container of a pod may write to its root.
func (b *Builder) StorageLimit(r *sandbox.Record) (*sandbox.Storage, error) {
	_, h, err := b.Handlers.ForNew(r)
	if err != nil {
		return nil, err
	}
	s, err := storageOf(r.Config.Get(), h.Storage)
	return &s, err
}

// Limits are what a new container of a pod, of that name, may write to its root and to its log. They are looked up once
// for each create: add to this what a handler says of a new container and its record keeps.
func (b *Builder) Limits(r *sandbox.Record, name string) (*sandbox.Storage, *sandbox.LogLimit, error) {
	_, h, err := b.Handlers.ForNew(r)
	if err != nil {
		return nil, nil, err
	}
	s, err := storageOf(r.Config.Get(), h.Storage)
	if err != nil {
		return nil, nil, err
	}
	logs, err := logLimit(r.Config.Get(), h.Log, name)
	return &s, logs, err
}

// LimitStorage has the file system keep the container to what it may write. Where the file system cannot, the container
// is refused or watched, as its handler says.
func (c Container) LimitStorage() error {
	if c.ctr.Storage.Unlimited() {
		return nil
	}
	err := rootfs.SetQuota(c.at.Writable(c.r.ID, c.ctr.ID), quotaOf(c.ctr.Storage))
	if !errors.Is(err, rootfs.ErrNoQuota) {
		return err
	}
	if _, h, unknown := c.b.Handlers.ForNew(c.r); unknown == nil && h.Storage.Refuse {
		return c.b.refuseStorage(err)
	}
	c.b.Log.Warn("what a container writes is watched, and not limited", "pod", c.r.ID, "container", c.ctr.ID, "error", err)
	return nil
}

// UnlimitStorage takes the limit away.
func (c Container) UnlimitStorage() error { return rootfs.ClearQuota(c.at.Writable(c.r.ID, c.ctr.ID)) }

// logLimit is what may be written to the log of a pod's container of that name: as annotations of the pod say, or its
// handler. nil is no limit.
func logLimit(cfg *runtimeapi.PodSandboxConfig, h spec.Log, container string) (*sandbox.LogLimit, error) {
	rate, err := annotation.LogRate(cfg.GetAnnotations(), container, annotation.Bounds{
		Usual: h.Rate, Most: h.MaxRate, Least: config.LeastLogRate, UsualKey: "log_rate", MostKey: "max_log_rate",
	})
	if err != nil {
		return nil, err
	}
	most := cmp.Or(h.MaxBurst, h.Burst)
	if in := cmp.Or(h.MaxRate, h.Rate); most == 0 && in > 0 {
		most = max(in, config.LeastLogBurst)
	}
	burst, err := annotation.LogBurst(cfg.GetAnnotations(), container, annotation.Bounds{
		Usual: h.Burst, Most: most, Least: config.LeastLogBurst, UsualKey: "log_burst", MostKey: "max_log_burst",
	})
	if err != nil || rate == 0 {
		return nil, err
	}
	return &sandbox.LogLimit{
		Rate: int64(rate), Burst: cmp.Or(int64(burst), max(int64(rate), config.LeastLogBurst)),
	}, nil
}

// logLimits checks all of a pod's annotations about logs, and returns what is not of one container.
func logLimits(cfg *runtimeapi.PodSandboxConfig, h spec.Log) (*sandbox.LogLimit, error) {
	for _, container := range annotation.LogContainers(cfg.GetAnnotations()) {
		if _, err := logLimit(cfg, h, container); err != nil {
			return nil, err
		}
	}
	return logLimit(cfg, h, "")
}

// defaultShmSize is how many bytes /dev/shm has by default, as with containerd and CRI-O.
const defaultShmSize = 64 << 20

// shmSize is how many bytes a pod's /dev/shm has: as its annotation says, or its handler's shm_size, or 64 MiB. What is
// used of it counts to the memory of the container that writes it.
func shmSize(cfg *runtimeapi.PodSandboxConfig, h spec.Handler) (int64, error) {
	return annotation.ShmSize(cfg.GetAnnotations(), cmp.Or(h.ShmSize, defaultShmSize), h.MaxShmSize)
}
