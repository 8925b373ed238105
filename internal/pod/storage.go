package pod

import (
	"context"
	"errors"
	"fmt"

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
func checkStorage(c *Config, cfg *runtimeapi.PodSandboxConfig, h spec.Storage) error {
	s, err := storageOf(cfg, h)
	if err != nil || s.Unlimited() || !h.Refuse {
		return err
	}
	return refuseStorage(c, rootfs.LimitsProjects(c.PodsRoot()))
}

// refuseStorage is what a pod is told whose limit is not kept to because of err.
func refuseStorage(c *Config, err error) error {
	if err == nil {
		return nil
	}
	remedy := "mount the file system of " + c.Root + " with project quota (berth doctor says how), or set " +
		"storage_without_quota of the handler to watch"
	return fail.About(fail.Detail{Remedy: remedy}, "the limit of what a container writes: %w",
		fail.New(errdefs.ErrFailedPrecondition, "%w", err))
}

// limitsOf is what a new container of a pod, of that name, may write to its root and to its log.
func limitsOf(c *Config, r *sandbox.Record, name string) (*sandbox.Storage, *sandbox.LogLimit, error) {
	_, h, err := c.handlerSpec(r)
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

// limitStorage has the file system keep a container to what it may write. It may be repeated. Where the file system
// cannot, the container is refused or watched, as its handler says.
func limitStorage(l *container, c *sandbox.Container) error {
	if c.Storage.Unlimited() {
		return nil
	}
	cfg := l.cfg
	err := rootfs.SetQuota(cfg.Writable(l.p.id, c.ID), quotaOf(c.Storage))
	if !errors.Is(err, rootfs.ErrNoQuota) {
		return err
	}
	if _, h, unknown := cfg.handlerSpec(l.p.rec.Load()); unknown == nil && h.Storage.Refuse {
		return refuseStorage(cfg, err)
	}
	cfg.Log.Warn("what a container writes is watched, and not limited", "pod", l.p.id, "container", l.id, "error", err)
	return nil
}

// removeWritable takes away what a container has written, and its limit first: nobody finds that by a directory that is
// gone. A limit that stays keeps its number from being used again, and nothing else.
func removeWritable(l *container, c *sandbox.Container) error {
	l.p.s.Meter.Logs.Forget(c.ID)
	dir := l.cfg.Writable(l.p.id, c.ID)
	if l.p.s.projects {
		if err := rootfs.ClearQuota(dir); err != nil {
			l.cfg.Log.Warn("the limit of a container that is removed stays with its project's number", "pod", l.p.id,
				"container", l.id, "error", err)
		}
	}
	return removeDir(dir)
}

// limitAdopted limits what the containers of an earlier daemon write, one after another: they are on one file system,
// and where that hangs more than one would only wait beside it. Those of an earlier release have no limit in their
// record: they get what a new container of their pod gets.
func limitAdopted(ctx context.Context, s *Pods) {
	for _, p := range s.index.Load().pods {
		for _, c := range p.rec.Load().Containers {
			l := p.container(c.ID)
			if ctx.Err() != nil || l == nil || !c.Live() {
				continue
			}
			if err := limitAgain(l, c); err != nil {
				s.cfg.Log.Warn("a container of an earlier daemon may write without its limit; the next start tries again",
					"pod", p.id, "container", c.ID, "error", err)
			}
		}
	}
}

// limitAgain limits a container that runs already.
func limitAgain(l *container, c *sandbox.Container) error {
	if c.Storage == nil {
		_, h, err := l.cfg.handlerSpec(l.p.rec.Load())
		if err != nil {
			return fmt.Errorf("find its limit: %w", err)
		}
		s, err := storageOf(l.p.rec.Load().Config.Get(), h.Storage)
		if err != nil {
			return fmt.Errorf("find its limit: %w", err)
		}
		err = l.p.settle("container.storage", func(r *sandbox.Record) error {
			return r.Edit(c.ID, func(c *sandbox.Container) error {
				c.Storage = &s
				return nil
			})
		})
		if err != nil {
			return err
		}
		c = l.p.rec.Load().Container(c.ID)
	}
	if c == nil {
		return nil
	}
	if err := limitStorage(l, c); err != nil {
		return err
	}
	if now := l.p.rec.Load().Container(c.ID); now == nil || !now.Live() { // it is being removed, and may be past that step
		return rootfs.ClearQuota(l.cfg.Writable(l.p.id, c.ID))
	}
	return nil
}
