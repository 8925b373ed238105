package pod

import (
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// limit gives the handler of a bench a limit.
func (b *bench) limit(s spec.Storage) {
	b.cfg.Bundle.Handlers.Spec = func(name string) (runtime.Handler, spec.Handler, error) {
		h, err := b.cfg.Bundle.Handlers.Find(name)
		return h, spec.Handler{Storage: s}, err
	}
}

// TestStorageRefused has a handler that refuses pods whose limits nobody keeps, and one that does not.
func TestStorageRefused(t *testing.T) {
	b := open(t)
	if rootfs.LimitsProjects(b.cfg.PodsRoot()) == nil {
		t.Skip("the file system of temporary files has project quota")
	}
	b.limit(spec.Storage{Refuse: true})
	b.reopen(t)
	asks := podConfig("asks")
	asks.Annotations = map[string]string{annotation.KeyStorageBytes: "1Gi"}
	_, err := b.Run(t.Context(), asks, "")
	if !fail.Is(err, errdefs.ErrFailedPrecondition) || !errors.Is(err, rootfs.ErrNoQuota) ||
		!strings.Contains(fail.Details(err).Remedy, "storage_without_quota") {
		t.Errorf("refused: %v", err)
	}
	if _, err := b.Run(t.Context(), podConfig("asks-nothing"), ""); err != nil {
		t.Errorf("a pod without a limit: %v", err)
	}
	b.limit(spec.Storage{})
	b.reopen(t)
	if _, err := b.Run(t.Context(), asks, ""); err != nil {
		t.Errorf("watched: %v", err)
	}
}

// TestStorageOfAnOlderRelease adopts a container whose record says nothing of a limit: it gets that of a new one, for
// good. One that was made without a limit stays without.
func TestStorageOfAnOlderRelease(t *testing.T) {
	b := open(t)
	pod, old := b.live(t)
	made := sandbox.NewID()
	p := b.Catalog.index.Load().pods[pod]
	err := p.update(t.Context(), "test", func(r *sandbox.Record) error {
		c := *r.Container(old)
		c.ID, c.Storage = made, &sandbox.Storage{}
		r.Containers = append(r.Containers, &c)
		p.containers.put(newContainer(p, made))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Catalog.reindex(func(x *index) { x.containers[made] = p })
	b.drv.mu.Lock()
	b.drv.live[string(made)] = string(pod)
	b.drv.mu.Unlock()
	b.drv.inv.Containers = map[string]runtime.Found{}
	for _, id := range []sandbox.ID{old, made} {
		b.drv.inv.Containers[string(id)] = runtime.Found{State: runtime.Running}
		if err := os.MkdirAll(b.cfg.Writable(pod, id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := map[sandbox.ID]sandbox.Storage{old: {Bytes: 1 << 30, Inodes: 5000}, made: {}}
	stored := func() map[sandbox.ID]sandbox.Storage {
		all := map[sandbox.ID]sandbox.Storage{}
		for _, c := range b.Catalog.index.Load().pods[pod].rec.Load().Containers {
			if c.Storage != nil {
				all[c.ID] = *c.Storage
			}
		}
		return all
	}
	b.limit(spec.Storage{Size: 1 << 30, Inodes: 5000})
	b.reopen(t)
	wait(t, "the old container has a limit", func() bool { return maps.Equal(stored(), want) })
	b.limit(spec.Storage{Size: 2 << 30})
	b.reopen(t)
	wait(t, "the pod is adopted", func() bool { return b.Catalog.index.Load().pods[pod].rec.Load() != nil })
	if got := stored(); !maps.Equal(got, want) {
		t.Errorf("with another configuration: %v", got)
	}
}
