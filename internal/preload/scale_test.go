package preload

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/limit"
	"berth/test/timeouts"
	"berth/test/volume"
)

// TestTenThousandFiles has more files than there may be. Those that may be are taken in, and noted.
func TestTenThousandFiles(t *testing.T) {
	r := newRig(t)
	most := int(limit.PreloadFiles.Limit)
	for n := range most + 1 {
		r.ok(os.WriteFile(r.path(fmt.Sprintf("%05d.tar", n)), fmt.Appendf(nil, "r.example/%d:v1", n), 0o644))
	}
	r.start()
	r.problem(r.dir, "more than the 10000 allowed")
	r.awaitMany(most, imported)
	r.eventually("all are noted", func() bool { m, _ := readMemory(r.record, r.dir); return len(m.Files) == most })
	r.ok(os.Remove(r.path("00000.tar")))
	r.problem(r.dir, "")
	began := time.Now()
	r.restart()
	if took := time.Since(began); took > timeouts.For(time.Minute) {
		t.Errorf("a start takes %v", took)
	}
}

// TestTenThousandNames has more names than are pulled.
func TestTenThousandNames(t *testing.T) {
	r := newRig(t)
	most := int(limit.PreloadNames.Limit)
	var text strings.Builder
	for n := range most {
		fmt.Fprintf(&text, "r%d.example/x:v1\n", n)
	}
	r.put("a.txt", text.String())
	r.put("b.txt", a)
	r.start()
	r.problem(r.path("b.txt"), "more than the 10000 allowed")
	r.awaitMany(most, asked)
	if _, there := r.Get(a); there {
		t.Error("one too many is pulled")
	}
	r.put("a.txt", "r1.example/x:v1")
	r.has(a)
	r.problem(r.path("b.txt"), "")
}

// awaitMany waits until so many are imported, or pulled.
func (r *rig) awaitMany(n int, what func(*store) []string) {
	r.Helper()
	for deadline := time.Now().Add(timeouts.For(3 * time.Minute)); len(of(r.store, what)) < n; {
		if time.Sleep(time.Second / 10); time.Now().After(deadline) {
			r.Fatalf("%d of %d are there", len(of(r.store, what)), n)
		}
	}
}

// TestHungDirectory has the disk of the directory answer nothing any more: problems are told, and the end does not
// wait.
func TestHungDirectory(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	r := newRig(t)
	source := r.dir
	r.dir = filepath.Join(t.TempDir(), "slow")
	r.ok(os.Mkdir(r.dir, 0o755))
	d, err := volume.MountSlow(source, r.dir)
	r.ok(err)
	defer d.Close()
	r.ok(os.WriteFile(filepath.Join(source, "a.tar"), []byte(a), 0o644))
	r.start()
	r.has(a)
	goOn := d.Hang()
	time.Sleep(1500 * time.Millisecond) // a look has begun
	began := time.Now()
	r.d.Problems()
	r.d.Close()
	if took := time.Since(began); took > closing+timeouts.For(30*time.Second) {
		t.Errorf("its end takes %v", took)
	}
	goOn()
}
