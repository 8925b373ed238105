package pod

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"berth/internal/sandbox"
)

// TestUsageOfALargeLayerDelaysNoOther has a container make more files than can be counted while others wait: theirs are
// told, and its own when they have been counted.
func TestUsageOfALargeLayerDelaysNoOther(t *testing.T) {
	t.Parallel()
	const files = int(usageRate * 2.2) // usageShort is 2 s
	b := open(t)
	b.projects = false
	pod, large := started(t, b)
	small := sandbox.NewID()
	for _, id := range []sandbox.ID{large, small} {
		if err := os.MkdirAll(filepath.Join(b.cfg.Writable(pod, id), "upper"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range files {
		name := filepath.Join(b.cfg.Writable(pod, large), "upper", strconv.Itoa(i))
		if err := os.Symlink("x", name); err != nil {
			t.Fatal(err)
		}
	}
	m := Meter{b.Pods}
	p := b.index.Load().pods[pod]
	if err := p.update(t.Context(), "container.creating", func(r *sandbox.Record) error {
		other := *r.Containers[0]
		other.ID = small
		r.Containers = append(r.Containers, &other)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !m.readUsage(t.Context()) {
		t.Fatal("it was cut off")
	}
	if u, ok := m.usage.layer.Load(small); !ok || u.(Usage).Inodes != 1 {
		t.Errorf("of the small layer is known %+v", u)
	}
	if u, ok := m.usage.layer.Load(large); ok {
		t.Errorf("of the large layer is known %+v already", u)
	}
	wait(t, "the large layer", func() bool {
		u, ok := m.usage.layer.Load(large)
		return ok && u.(Usage).Inodes == uint64(files)+1
	})
}
