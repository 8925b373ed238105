package pod

import (
	"os"
	"path/filepath"
	"testing"
)

// What an image promises is made in its root, but for what is not the root's: /proc and /sys, and not each name that begins so.
func TestPrepareRoot(t *testing.T) {
	s := open(t)
	id, err := s.Run(t.Context(), podConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.find(id)
	if err != nil {
		t.Fatal(err)
	}
	b, root := &building{p: p}, t.TempDir()
	b.img.Config.Volumes = map[string]struct{}{"/system/data": {}, "data": {}, "/proc/x": {}, "/sys": {}}
	if err := b.prepareRoot(p.rec.Load(), root, "/processing"); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{"system/data": true, "data": true, "processing": true, "proc": false, "sys": false} {
		if _, err := os.Stat(filepath.Join(root, dir)); (err == nil) != want {
			t.Errorf("/%s: %v", dir, err)
		}
	}
}
