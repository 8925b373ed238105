package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkRoot is the whole life of a root of ten layers: prepare, unmount, remove.
func BenchmarkRoot(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	base := b.TempDir()
	var lower []string
	for i := range 10 {
		lower = append(lower, filepath.Join(base, fmt.Sprint(i)))
		if err := os.Mkdir(lower[i], 0o755); err != nil {
			b.Fatal(err)
		}
	}
	dir, at := base+"/dir", base+"/root"
	for b.Loop() {
		if err := Prepare(dir, at, Options{Lower: lower}); err != nil {
			b.Fatal(err)
		}
		if err := Unmount(at); err != nil {
			b.Fatal(err)
		}
		if err := Remove(dir); err != nil {
			b.Fatal(err)
		}
	}
}
