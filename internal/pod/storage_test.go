package pod

import (
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

func TestStorageOf(t *testing.T) {
	const size, inodes = annotation.KeyStorageBytes, annotation.KeyStorageInodes
	usual := spec.Storage{Size: 1 << 30, Inodes: 1000}
	bytes := func(text string) map[string]string { return map[string]string{size: text} }
	files := func(text string) map[string]string { return map[string]string{inodes: text} }
	for name, c := range map[string]struct {
		asks map[string]string
		of   spec.Storage
		want sandbox.Storage
		says string
	}{
		"nobody says":           {},
		"the handler":           {nil, usual, sandbox.Storage{Bytes: 1 << 30, Inodes: 1000}, ""},
		"the pod":               {asks: bytes("1.5Gi"), want: sandbox.Storage{Bytes: 1.5 * (1 << 30)}},
		"the pod one of both":   {bytes("500M"), usual, sandbox.Storage{Bytes: 500e6, Inodes: 1000}, ""},
		"the pod the other":     {files("64"), usual, sandbox.Storage{Bytes: 1 << 30, Inodes: 64}, ""},
		"more than usual":       {bytes("2Gi"), usual, sandbox.Storage{}, "1073741824 that storage_size allows"},
		"more files than usual": {files("1001"), usual, sandbox.Storage{}, "1000 that storage_inodes allows"},
		"as much as is allowed": {bytes("2Gi"), spec.Storage{Size: 1 << 30, MaxSize: 2 << 30},
			sandbox.Storage{Bytes: 2 << 30}, ""},
		"more than is allowed": {bytes("3Gi"), spec.Storage{MaxSize: 2 << 30}, sandbox.Storage{}, "max_storage_size"},
		"the least":            {bytes("1Mi"), usual, sandbox.Storage{Bytes: 1 << 20, Inodes: 1000}, ""},
		"nothing":              {asks: bytes("0"), says: "at least 1048576"},
		"too few files":        {asks: files("63"), says: "at least 64"},
		"as much as there is":  {asks: bytes("9E"), want: sandbox.Storage{Bytes: 9e18}},
		"beyond 8 Ei":          {asks: bytes("10E"), says: "at most 8 Ei"},
		"no quantity":          {asks: bytes("much"), says: "not a quantity"},
		"a quantity below 0":   {asks: bytes("-1Gi"), says: "not a quantity"},
		"an empty annotation":  {asks: files(""), says: "not a quantity"},
		"a huge exponent":      {asks: bytes("1e999999999"), says: "not a quantity"},
	} {
		got, err := storageOf(&runtimeapi.PodSandboxConfig{Annotations: c.asks}, c.of)
		switch {
		case c.says == "" && (err != nil || got != c.want):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.says != "" && (!fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

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
	p := b.index.Load().pods[pod]
	err := p.update(t.Context(), "test", func(r *sandbox.Record) error {
		c := *r.Container(old)
		c.ID, c.Storage = made, &sandbox.Storage{}
		r.Containers = append(r.Containers, &c)
		p.containers[made] = newContainer(p, made)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.reindex(func(x *index) { x.containers[made] = p })
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
		for _, c := range b.index.Load().pods[pod].rec.Load().Containers {
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
	wait(t, "the pod is adopted", func() bool { return b.index.Load().pods[pod].rec.Load() != nil })
	if got := stored(); !maps.Equal(got, want) {
		t.Errorf("with another configuration: %v", got)
	}
}
