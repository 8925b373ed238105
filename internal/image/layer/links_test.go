package layer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFarLinks has hard links to files below meet what else the layer has at their names.
func TestFarLinks(t *testing.T) {
	usr := []item{dir("usr", 0o755), dir("usr/lib", 0o755), file("usr/lib/a", "body"), file("usr/lib/b", "old"),
		symlink("lib", "usr/lib"), dir("d", 0o755), file("d/x", "x")}
	tree := []string{"usr d 755 0:0", "usr/lib d 755 0:0", "usr/lib/a f 644 0:0 body"}
	cases := []struct {
		name  string
		layer []item
		top   []string
	}{
		{"after a whiteout", []item{file("usr/lib/.wh.b", ""), hardlink("usr/lib/b", "usr/lib/a")},
			append(tree, "usr/lib/b f 644 0:0 body = usr/lib/a")},
		{"before a whiteout", []item{hardlink("usr/lib/b", "usr/lib/a"), file("usr/lib/.wh.b", "")},
			append(tree, "usr/lib/b f 644 0:0 body = usr/lib/a")},
		{"after a file", []item{file("usr/lib/b", "own"), hardlink("usr/lib/b", "usr/lib/a")},
			append(tree, "usr/lib/b f 644 0:0 body = usr/lib/a")},
		{"after a tree", []item{file("usr/lib/b/c", "own"), hardlink("usr/lib/b", "usr/lib/a")},
			append(tree, "usr/lib/b f 644 0:0 body = usr/lib/a")},
		{"through a symlink below", []item{hardlink("lib/c", "lib/a")}, append(tree, "usr/lib/c f 644 0:0 body = usr/lib/a")},
		{"through a symlink below, on its own", []item{file("usr/lib/c", "own"), hardlink("lib/c", "lib/a")},
			append(tree, "usr/lib/c f 644 0:0 body = usr/lib/a")},
		{"under a tree that goes",
			[]item{file("usr/lib/b/c/d", "1"), hardlink("usr/lib/b/c/e", "usr/lib/a"), file("lib/b", "2")},
			[]string{"usr d 755 0:0", "usr/lib d 755 0:0", "usr/lib/b f 644 0:0 2"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dirs := stack(t, usr, c.layer)
			wantTree(t, dirs[1], c.top...)
		})
	}
}

// TestChainOfFarLinks has hard links that name one another against the order of their names.
func TestChainOfFarLinks(t *testing.T) {
	const n = 500
	items := []item{hardlink(fmt.Sprintf("%03d", n), "z")}
	for i := range n {
		items = append(items, hardlink(fmt.Sprintf("%03d", i), fmt.Sprintf("%03d", i+1)))
	}
	dirs := stack(t, []item{file("z", "z")}, items)
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dirs[1], FS, "000"), &st); err != nil || st.Nlink != n+2 {
		t.Errorf("the file has %d names, want %d: %v", st.Nlink, n+2, err)
	}
}

// TestManifestOfManyReplaced reads the manifest of a layer that says everything twice: looking through all of it for
// each line would take a quarter of an hour.
func TestManifestOfManyReplaced(t *testing.T) {
	t.Parallel()
	const n = 150_000
	name := filepath.Join(t.TempDir(), ManifestFile)
	w, err := createManifest(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1, 2} {
		for i := range n {
			p := fmt.Sprintf("d/%06d", i)
			if size == 2 {
				if err := w.add(entry{Path: p, Type: typeGone}); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.add(entry{Path: p, Type: typeFile, Size: size}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	man := standing(t, name)
	if len(man) != n {
		t.Fatalf("%d entries", len(man))
	}
	for p, e := range man {
		if e.Size != 2 {
			t.Fatalf("%s is the first one", p)
		}
	}
}

// standing are the lines of a manifest that no later one replaces.
func standing(t *testing.T, name string) map[string]entry {
	t.Helper()
	man, err := list(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]entry{}
	err = eachLine(t.Context(), name, func(line int64, e entry) error {
		if man.holds(line, e) {
			out[e.Path] = e
		}
		if _, there := out[e.Path]; there && !man.has(e.Path) {
			t.Errorf("%s has a line, and is not listed", e.Path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestManifestsThatAreNone lists what an unpacker that was taken over may have left for a manifest.
func TestManifestsThatAreNone(t *testing.T) {
	for _, text := range []string{`{}`, `{"p":"x"}`, `{"p":"x","t":""}`, `{"p":"x","t":"ff"}`} {
		name := filepath.Join(t.TempDir(), ManifestFile)
		w, err := createPacked(name, os.O_TRUNC)
		if err == nil {
			_, err = w.Write([]byte(text + "\n"))
		}
		if err == nil {
			err = w.close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if man, err := list(t.Context(), name); err == nil {
			t.Errorf("%s is listed as %v", text, man.last)
		}
	}
}

// TestListingIsSmall lists a layer of many files, as a check of the store does in the daemon.
func TestListingIsSmall(t *testing.T) {
	const n = 100000
	name := filepath.Join(t.TempDir(), ManifestFile)
	w, err := createManifest(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		p := fmt.Sprintf("usr/lib/node_modules/some-package/lib/deeper/still/%08d.js", i)
		if err := w.add(entry{Path: p, Type: typeFile, Size: 1, Mode: 0o644, Hash: strings.Repeat("0", 64)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	man, err := list(t.Context(), name)
	if err != nil || len(man.last) != n {
		t.Fatalf("%d paths, %v", len(man.last), err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n; each > 64 {
		t.Errorf("%d bytes for each path", each)
	}
	runtime.KeepAlive(man)
}

// TestReplacedInAnyOrder compares what is left of a manifest with doing what its lines say one by one.
func TestReplacedInAnyOrder(t *testing.T) {
	t.Parallel()
	paths := []string{"a", "a/b", "a/b/c", "a/bc", "b", "b/a", "ab"}
	for range 300 {
		name := filepath.Join(t.TempDir(), ManifestFile)
		w, err := createManifest(name)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]entry{}
		for i := range rand.IntN(12) {
			e := entry{Path: paths[rand.IntN(len(paths))], Type: typeFile, Size: int64(i)}
			if rand.IntN(3) == 0 {
				e = entry{Path: e.Path, Type: typeGone}
				maps.DeleteFunc(want, func(p string, _ entry) bool { return p == e.Path || strings.HasPrefix(p, e.Path+"/") })
			} else {
				want[e.Path] = e
			}
			if err := w.add(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		if got := standing(t, name); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v; want %v", got, want)
		}
	}
}
