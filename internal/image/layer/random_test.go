package layer

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// randomLayer has some entries of few names, so that they meet: directories, files, whiteouts, opaque marks, hard links
// to what is in linked, and symlinks.
func randomLayer(r *rand.Rand, linked *[]string) []item {
	names := []string{"a", "b", "c", "l", "m"}
	some := func() string {
		p := names[r.Intn(len(names))]
		for range r.Intn(3) {
			p += "/" + names[r.Intn(len(names))]
		}
		return p
	}
	var out []item
	for range 2 + r.Intn(6) {
		switch p := some(); r.Intn(10) {
		case 0, 1:
			out = append(out, owned(dir(p, int64(0o700+r.Intn(64))), r.Intn(3), r.Intn(3)))
		case 2, 3:
			targets := []string{"a", "b", "a/b", "/c", "../b", "m", "c/a"}
			out = append(out, symlink(names[3+r.Intn(2)], targets[r.Intn(len(targets))]))
		case 4:
			out = append(out, file(path.Join(path.Dir(p), whiteoutPrefix+path.Base(p)), ""))
		case 5:
			out = append(out, file(p+"/.wh..wh..opq", ""))
		case 6:
			if len(*linked) > 0 {
				out = append(out, hardlink(p, (*linked)[r.Intn(len(*linked))]))
			}
		default:
			out = append(out, file(p, fmt.Sprint("x", r.Intn(100))))
			*linked = append(*linked, p)
		}
	}
	return out
}

// TestRandomLayers stacks layers at random. What unpacks is what its manifest says, and gives its tar back.
func TestRandomLayers(t *testing.T) {
	inMemory(t)
	finalized := 0
	for seed := range int64(300) {
		r, root := rand.New(rand.NewSource(seed)), t.TempDir()
		var lowers, linked []string
		for k := range 5 {
			items := randomLayer(r, &linked)
			d, data := filepath.Join(root, fmt.Sprint(k)), archive(t, items...)
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
			res, err := Unpack(t.Context(), bytes.NewReader(data), d, hostileLimits)
			if err != nil {
				continue
			}
			exact(t, d, data)
			if err := Finalize(t.Context(), d, res, treesAt(t, lowers...)); err != nil {
				continue
			}
			finalized++
			proven(t, d)
			exact(t, d, data)
			lowers = append([]string{filepath.Join(d, FS)}, lowers...)
			if t.Failed() {
				t.Fatalf("seed %d, layer %d: %+v", seed, k, items)
			}
		}
	}
	if finalized < 500 {
		t.Errorf("only %d layers could be finalized", finalized)
	}
}
