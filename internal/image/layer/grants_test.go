package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/limit"
)

// saved is a result as another process finalizes with it.
func saved(t testing.TB, dir string, res *Result) *Result {
	t.Helper()
	if res.Independent() {
		return res
	}
	if err := res.Save(dir); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadResult(t.Context(), dir, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Bytes != res.Bytes || loaded.Inodes != res.Inodes || loaded.dirs.count != res.dirs.count {
		t.Fatalf("saved %+v, loaded %+v", res, loaded)
	}
	return loaded
}

func device(name string, kind byte, major, minor int64) item {
	h := tar.Header{Name: name, Typeflag: kind, Mode: 0o640, Uid: 7, Gid: 8, Devmajor: major, Devminor: minor}
	return item{Header: h}
}

func lstat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// TestGrants has what takes privileges appear by Grant only, with the metadata that the tar gives, and nothing of the
// list stay behind.
func TestGrants(t *testing.T) {
	labelled := file("d/labelled", "x")
	labelled.PAXRecords = map[string]string{paxXattr + "security.test": "label"}
	d := t.TempDir()
	data := archive(t, dir("d", 0o755), device("d/null", tar.TypeChar, 1, 3), device("d/loop", tar.TypeBlock, 7, 0),
		hardlink("d/more", "d/null"), labelled, file("d/.wh..wh..opq", ""), device("gone", tar.TypeChar, 1, 5),
		file("gone", "a file in its place"))
	res, err := UnpackConfined(t.Context(), bytes.NewReader(data), d, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	fs := filepath.Join(d, FS)
	for _, name := range []string{"d/null", "d/loop", "d/more"} {
		if st := lstat(t, filepath.Join(fs, name)); st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			t.Errorf("%s is made already", name)
		}
	}
	if IsOpaque(rootOf(t, fs), "d") {
		t.Error("the directory is opaque already")
	}
	if got, err := Grant(t.Context(), d, Limits{}); err != nil || got.Unsupported != 0 || !got.Marked {
		t.Fatal(got, err)
	}
	proven(t, d)
	exact(t, d, data)
	null, more := lstat(t, filepath.Join(fs, "d/null")), lstat(t, filepath.Join(fs, "d/more"))
	if null.Ino != more.Ino || null.Rdev != unix.Mkdev(1, 3) || null.Mode != unix.S_IFCHR|0o640 || null.Uid != 7 {
		t.Errorf("the device is %+v, its further name %+v", null, more)
	}
	if !IsOpaque(rootOf(t, fs), "d") || res.Unsupported != 0 {
		t.Error("the directory is not opaque")
	}
	if got, err := lgetxattr(filepath.Join(fs, "d/labelled"), "security.test"); string(got) != "label" {
		t.Errorf("the attribute is %q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(d, GrantsFile)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the list is left:", err)
	}
}

func rootOf(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestHostileGrants has Grant refuse every list that an unpacker led astray could leave, and touch nothing outside.
func TestHostileGrants(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, g := range map[string]grant{
		"above":              {Path: "../../outside", Kind: grantOpaque},
		"absolute":           {Path: outside, Kind: grantOpaque},
		"through a symlink":  {Path: "out/x", Kind: typeChar, Dev: 1},
		"a symlink":          {Path: "out", Kind: grantOpaque},
		"a file":             {Path: "f", Kind: typeChar, Dev: 1},
		"whiteout":           {Path: "s", Kind: typeChar},
		"no such link":       {Path: "s", Kind: typeChar, Dev: 1, First: "f"},
		"link above":         {Path: "s", Kind: typeChar, Dev: 1, First: "../../outside"},
		"trusted":            {Path: "f", Kind: grantXattr, Name: "trusted.overlay.redirect", Value: []byte("/")},
		"long value":         {Path: "f", Kind: grantXattr, Name: "security.x", Value: make([]byte, 65<<10)},
		"unknown":            {Path: "f", Kind: "q"},
		"nothing":            {},
		"longer than a line": {Path: "f", Kind: grantXattr, Name: "security.x", Value: make([]byte, 4<<20)},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			d, _ := unpack(t, file("f", "x"), symlink("out", outside))
			if err := unix.Mknod(filepath.Join(d, FS, "s"), unix.S_IFSOCK|0o600, 0); err != nil {
				t.Fatal(err)
			}
			l := &grantList{dir: d}
			if err := errors.Join(l.add(g), l.close()); err != nil {
				t.Fatal(err)
			}
			if _, err := Grant(t.Context(), d, Limits{}); err == nil {
				t.Error("it was granted")
			}
			if left, _ := filepath.Glob(outside + "/*"); len(left) > 0 || IsOpaque(rootOf(t, outside), ".") {
				t.Error("it reached outside:", left)
			}
		})
	}
}

// TestGrantsAreCounted has a list be no longer than the layer's limits allow.
func TestGrantsAreCounted(t *testing.T) {
	d, _ := unpack(t, file("f", "x"))
	l := &grantList{dir: d}
	for range 100 {
		if err := l.add(grant{Path: "f", Kind: grantXattr, Name: "security.x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Grant(t.Context(), d, Limits{Entries: 10}); !fail.As[*limit.Error](err) {
		t.Error(err)
	}
}

// TestLongLines has a line of a manifest that nobody could have written in good faith cost its reader nothing.
func TestLongLines(t *testing.T) {
	inMemory(t)
	d, _ := unpack(t, file("f", "x"))
	out, err := createPacked(filepath.Join(d, ManifestFile), os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for range 256 {
		if _, err := out.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.close(); err != nil {
		t.Fatal(err)
	}
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Verify(t.Context(), d, func(string, string) {}); !fail.As[*limit.Error](err) {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 64<<20 {
		t.Errorf("reading it takes %d MiB", allocated>>20)
	}
}
