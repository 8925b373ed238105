package meter

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
	large, small := sandbox.NewID(), sandbox.NewID()
	m := open(t, &sandbox.Container{ID: large}, &sandbox.Container{ID: small})
	m.upper(t, small)
	dir := m.upper(t, large)
	for i := range files {
		if err := os.Symlink("x", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
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
