package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// treesAt opens trees of which nothing is known.
func treesAt(t testing.TB, paths ...string) Trees {
	t.Helper()
	var lowers []Lower
	for _, path := range paths {
		lowers = append(lowers, Lower{Path: path})
	}
	trees, err := OpenTrees(lowers)
	if err != nil {
		t.Fatal(err)
	}
	return trees
}

// deepOver finalizes a layer with a file in a deep directory that it does not describe, and with hard links to files
// below, over several layers that have the same directory. It returns how often a mark was looked at, and the result.
func deepOver(t *testing.T, trees, links int, unmarked bool) (looks int, fs string) {
	t.Helper()
	const depth = 20
	deep := strings.Repeat("d/", depth)
	var roots Trees
	for n := range trees {
		at := filepath.Join(t.TempDir(), "lower")
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		items := []item{file(deep+"f", fmt.Sprint(n)), symlink("s", deep)}
		if !unmarked {
			items = append(items, file("d/o/.wh..wh..opq", ""))
		}
		res, err := Unpack(t.Context(), strings.NewReader(string(archive(t, items...))), at, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if res.Marked == unmarked {
			t.Errorf("layer %d is marked: %v", n, res.Marked)
		}
		one, err := OpenTrees([]Lower{{Path: filepath.Join(at, FS), Unmarked: unmarked}})
		if err != nil {
			t.Fatal(err)
		}
		roots.Roots, roots.Unmarked = append(roots.Roots, one.Roots...), append(roots.Unmarked, one.Unmarked...)
	}
	items := []item{file(deep+"x", "x")}
	for n := range links {
		items = append(items, hardlink(fmt.Sprint("l", n), "s/f"))
	}
	at := filepath.Join(t.TempDir(), "upper")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	res, err := Unpack(t.Context(), strings.NewReader(string(archive(t, items...))), at, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	roots.Opaque = func(tree int, path string) (bool, error) {
		looks++
		return IsOpaque(roots.Roots[tree], path), nil
	}
	if err := FinalizeConfined(t.Context(), at, res, roots); err != nil {
		t.Fatal(err)
	}
	return looks, filepath.Join(at, FS)
}

// TestMarksAreLookedAtOnce bounds how often finalizing looks at the overlay's marks of the layers below: never of those
// that have none and of the lowest one, and once of each directory of the others.
func TestMarksAreLookedAtOnce(t *testing.T) {
	for _, c := range []struct {
		trees    int
		unmarked bool
		most     int
	}{
		{1, false, 0}, {5, true, 0}, {5, false, 4 * 21},
	} {
		for _, links := range []int{0, 50} {
			looks, fs := deepOver(t, c.trees, links, c.unmarked)
			if looks > c.most {
				t.Errorf("%d trees, unmarked %v, %d links: marks were looked at %d times", c.trees, c.unmarked, links, looks)
			}
			if links > 0 {
				if text, err := os.ReadFile(filepath.Join(fs, "l7")); string(text) != "0" || err != nil {
					t.Errorf("a link to the topmost file has %q, %v", text, err)
				}
			}
		}
	}
}

// TestMarkThatCannotBeLookedAt ends with the error of who looks at the marks.
func TestMarkThatCannotBeLookedAt(t *testing.T) {
	look := func(int, string) (bool, error) { return false, unix.EIO }
	v := &view{
		ctx: t.Context(), roots: []int{-1, -1}, opaque: marksOf(Trees{Opaque: look}).isOpaque,
		looks: newQuota(limit.ImageLooks),
	}
	if _, err := v.resolve("a/b", true); !errors.Is(err, unix.EIO) {
		t.Errorf("it ends with %v", err)
	}
}

// TestMarksAreForgotten keeps no more of what was looked at than it may.
func TestMarksAreForgotten(t *testing.T) {
	long := strings.Repeat("d/", 2000)
	m := marksOf(Trees{Opaque: func(_ int, path string) (bool, error) { return path[0] == '1', nil }})
	for range 2 {
		for n := range 3000 {
			path := fmt.Sprint(n, "/", long)
			if hides, err := m.isOpaque(0, path); err != nil || hides != (path[0] == '1') {
				t.Fatalf("%d: %v, %v", n, hides, err)
			}
			if m.size > knownMarks || len(m.known)*len(long) > knownMarks {
				t.Fatalf("%d directories are remembered", len(m.known))
			}
		}
	}
}
