package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"berth/internal/fail"
	"berth/internal/limit"
)

// exact fails the test unless the layer in d gives back the very tar it came from.
func exact(t testing.TB, d string, want []byte) {
	t.Helper()
	got, err := assembled(d)
	if err != nil {
		t.Fatalf("assemble: %v", err)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Fatalf("the tar of %d bytes came back with %d, different from byte %d on", len(want), len(got), at)
	}
}

func assembled(d string) ([]byte, error) {
	tr, err := OpenTar(d)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if err := tr.CopyTo(context.Background(), &buf); err != nil {
		return buf.Bytes(), err
	}
	if int64(buf.Len()) != tr.Size {
		return buf.Bytes(), fmt.Errorf("%d bytes, promised %d", buf.Len(), tr.Size)
	}
	return buf.Bytes(), nil
}

func TestTarComesBack(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 300<<10)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	big := string(noise)
	cases := map[string][]byte{
		"plain": archive(t, dir("d", 0o755), file("d/a", "1"), file("empty", ""), symlink("l", "d/a"),
			hardlink("h", "d/a"), file("big", big)),
		"long names and records": archive(t,
			pax(file(strings.Repeat("n", 200), "x"), paxXattr+"user.a", strings.Repeat("v", 3000)), file("z", big)),
		"names that are no text": archive(t, file("b\xff\x01", "1")),
		"the last of two wins":   archive(t, file("a", "1"), hardlink("h", "a"), file("a", "2"), file("a", "3")),
		"a directory that leaves": archive(t, dir("d", 0o755), dir("d/e", 0o755), file("d/e/x", big), file("d/y", "y"),
			hardlink("k", "d/y"), file("d", "now a file"), dir("d", 0o700), file("d/e", "4")),
		"a link in its place": archive(t, dir("d", 0o755), file("d/x", "old"), symlink("d", "e"), file("d/x", "new"),
			file("e/x", "newest")),
		"whiteouts with content": archive(t, file("a", "1"), file(".wh.a", "why not"), file(".wh.b", big), file("b", "2")),
		"through symlinks":       archive(t, symlink("out", "/real"), file("out/f", "1"), file("real/f", "2")),
		"no end":                 bytes.TrimRight(archive(t, file("a", strings.Repeat("x", 512))), "\x00"),
		"more after the end":     append(archive(t, file("a", "1")), noise...),
		"nothing":                {},
		"two zero blocks":        make([]byte, 1024),
		"old forms":              rawArchive(file("./a", "1"), dir("d", 0o755), file("d/a", big), hardlink("l", "a")),
		"sparse":                 sparseArchive(t),
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			res, err := Unpack(t.Context(), iotest.OneByteReader(bytes.NewReader(data)), d, Limits{})
			if len(data) > 64<<10 {
				d = t.TempDir()
				res, err = Unpack(t.Context(), bytes.NewReader(data), d, Limits{})
			}
			if err != nil {
				t.Fatal(err)
			}
			exact(t, d, data)
			if err := Finalize(t.Context(), d, res, Trees{}); err != nil {
				t.Fatal(err)
			}
			proven(t, d)
			exact(t, d, data)
		})
	}
}

// sparseArchive is what GNU tar makes of a file with holes.
func sparseArchive(t *testing.T) []byte {
	t.Helper()
	d := t.TempDir()
	f, err := os.Create(d + "/holes")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteAt([]byte("data"), 1<<20)
	_, _ = f.WriteAt([]byte("more"), 5<<20)
	if err := errors.Join(f.Truncate(8<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, format := range []string{"gnu", "posix"} {
		out, err := exec.Command("tar", "-c", "--sparse", "--format="+format, "-C", d, "holes").Output()
		if err != nil {
			t.Fatal(err)
		}
		all = append(bytes.TrimRight(all, "\x00"), make([]byte, (512-len(bytes.TrimRight(all, "\x00"))%512)%512)...)
		all = append(all, out...)
	}
	return all
}

// TestTarComesBackWhenFinalized moves files away from where the tar-split metadata first says that they are.
func TestTarComesBackWhenFinalized(t *testing.T) {
	t.Parallel()
	below := []item{dir("usr", 0o755), dir("usr/lib", 0o755), symlink("lib", "usr/lib"), symlink("one", "two"),
		dir("two", 0o700), file("two/f", "below")}
	cases := map[string][]item{
		"moved": {file("lib/a/b", "1"), file("lib/c", "2")},
		"moved onto its own": {dir("usr", 0o755), dir("usr/lib", 0o755), file("usr/lib/c", "own"),
			file("lib/c", "that replaces it")},
		"a tree on a file": {dir("usr", 0o755), dir("usr/lib", 0o755), file("usr/lib/c", "own"), file("lib/c/d/e", "a tree"),
			file("lib/c/d/f", "of two")},
		"a file on a tree": {dir("usr", 0o755), dir("usr/lib", 0o755), dir("usr/lib/c", 0o755), file("usr/lib/c/x", "own"),
			file("lib/c", "a file")},
		"merged": {dir("usr", 0o755), dir("usr/lib", 0o755), dir("usr/lib/c", 0o755), file("usr/lib/c/x", "x"),
			file("usr/lib/c/y", "y"), file("lib/c/y", "z")},
		"replaced before":  {file("lib/c", "first"), file("lib/c", "second"), file("one/f", "own"), file("one/f", "again")},
		"hard links below": {hardlink("l", "two/f"), file("one/g", "own")},
	}
	for name, items := range cases {
		t.Run(name, func(t *testing.T) {
			low, _ := unpack(t, below...)
			d, res := unpack(t, items...)
			exact(t, d, archive(t, items...))
			if err := Finalize(t.Context(), d, res, treesAt(t, filepath.Join(low, FS))); err != nil {
				t.Fatal(err)
			}
			proven(t, d)
			exact(t, d, archive(t, items...))
		})
	}
}

// TestManyReplaced makes sure that a hostile tar does not make the way back long.
func TestManyReplaced(t *testing.T) {
	t.Parallel()
	var items []item
	for i := range 2000 {
		items = append(items, file("a", fmt.Sprint(i)))
	}
	d, _ := unpack(t, items...)
	exact(t, d, archive(t, items...))
	var depth string
	for range 200 {
		depth += "d/"
	}
	deep := []item{file(depth+"x", "1"), file("d", "2"), dir("d", 0o755), file(depth+"x", "3"), file("d/d", "4")}
	d, _ = unpack(t, deep...)
	exact(t, d, archive(t, deep...))
}

func TestDamageIsNamed(t *testing.T) {
	items := []item{dir("d", 0o755), file("d/f", "hello"), file("g", "old"), file("g", "new")}
	damage := map[string]struct {
		do   func(d string) error
		want string
	}{
		"missing": {func(d string) error { return os.Remove(d + "/fs/d/f") }, "fs/d/f is missing"},
		"longer": {func(d string) error {
			return os.WriteFile(d+"/fs/d/f", []byte("hello!"), 0)
		}, "fs/d/f has 6 bytes, not 5"},
		"a symlink": {func(d string) error {
			os.Remove(d + "/fs/d/f")
			return os.Symlink("/etc/passwd", d+"/fs/d/f")
		}, "fs/d/f cannot be opened"},
		"a fifo": {func(d string) error {
			os.Remove(d + "/fs/d/f")
			return exec.Command("mkfifo", d+"/fs/d/f").Run()
		}, "fs/d/f is no regular file"},
		"a linked d": {func(d string) error {
			os.Rename(d+"/fs/d", d+"/d")
			return os.Symlink("../d", d+"/fs/d")
		}, "fs/d/f cannot be opened"},
		"replaced": {func(d string) error { return os.Remove(d + "/replaced/1") }, "replaced/1 is missing"},
	}
	for name, c := range damage {
		t.Run(name, func(t *testing.T) {
			d, _ := unpack(t, items...)
			if err := c.do(d); err != nil {
				t.Fatal(err)
			}
			_, err := assembled(d)
			var damaged *DamagedError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestTarSplitIsChecked(t *testing.T) {
	d, _ := unpack(t, file("a", "hello"), file("b", strings.Repeat("b", 100)))
	good, err := os.ReadFile(filepath.Join(d, TarSplitFile))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := unpack(t, file("a", "hello!"))
	foreign, _ := os.ReadFile(filepath.Join(other, TarSplitFile))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1
	for name, bad := range map[string][]byte{
		"cut": good[:len(good)-3], "only its name": good[:5], "empty": {}, "flipped": flipped, "another's": foreign,
		"newer": append([]byte("berth skeleton 2\n"), good[len(tarSplitMagic):]...),
	} {
		if err := os.WriteFile(filepath.Join(d, TarSplitFile), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		var found []string
		if err := Verify(t.Context(), d, func(p, problem string) { found = append(found, p+" "+problem) }); err != nil ||
			len(found) == 0 {
			t.Errorf("%s: nothing was found (%v)", name, err)
		}
	}
	if err := os.Remove(filepath.Join(d, TarSplitFile)); err != nil {
		t.Fatal(err)
	}
	proven(t, d) // as an earlier release left it
	if _, err := OpenTar(d); !errors.Is(err, ErrNoTarSplit) {
		t.Errorf("without a skeleton: %v", err)
	}
}

// TestFrozenTarSplit reads a layer as the first release that kept tar-split metadata wrote it.
func TestFrozenTarSplit(t *testing.T) {
	items := []item{dir("d", 0o755), file("d/a", "one"), file("d/a", "two"), symlink("l", "d"), file("l/b", "three"),
		file("e/f", "four")}
	const frozen = "testdata/frozen/skeleton-v1"
	if dir := os.Getenv("BERTH_FREEZE"); dir != "" {
		d, _ := unpack(t, items...)
		raw, _ := os.ReadFile(filepath.Join(d, TarSplitFile))
		if err := os.WriteFile(filepath.Join(dir, "skeleton-v1"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := t.TempDir()
	for name, body := range map[string]string{"fs/d/a": "two", "fs/d/b": "three", "fs/e/f": "four", "replaced/1": "one"} {
		_ = os.MkdirAll(filepath.Dir(filepath.Join(d, name)), 0o755)
		if err := os.WriteFile(filepath.Join(d, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(frozen)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d, TarSplitFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := assembled(d)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(bytes.NewReader(got)); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		body, _ := io.ReadAll(tr)
		names = append(names, h.Name+"="+string(body))
	}
	if strings.Join(names, " ") != "d/= d/a=one d/a=two l= l/b=three e/f=four" {
		t.Errorf("got %q", names)
	}
}

func TestTarSplitIsBounded(t *testing.T) {
	head, block := archive(t, file("a", "1")), make([]byte, 64<<10)
	endless := func() io.Reader { // small pieces: the race detector looks at all of a slice whenever it is copied
		parts := []io.Reader{bytes.NewReader(head)}
		for range literalRoom / len(block) {
			parts = append(parts, bytes.NewReader(block))
		}
		return io.MultiReader(parts...)
	}
	if _, err := Unpack(t.Context(), endless(), t.TempDir(), Limits{Bytes: 10}); !fail.As[*limit.Error](err) {
		t.Errorf("endless rest: %v", err)
	}
	if _, err := Unpack(t.Context(), endless(), t.TempDir(), Limits{Bytes: 2 * literalRoom}); err != nil {
		t.Error(err)
	}
}

// BenchmarkUnpack unpacks files as an image has them, most of them small, and says what the tar-split metadata adds on
// the disk.
func BenchmarkUnpack(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var items []item
	for i := range 4000 {
		if i%20 == 0 {
			items = append(items, dir(fmt.Sprintf("usr/share/d%d", i/20), 0o755))
		}
		body := make([]byte, int(400*(1+r.ExpFloat64()*r.ExpFloat64()*40)))
		for k := range body {
			body[k] = byte(r.Uint32())
		}
		items = append(items, file(fmt.Sprintf("usr/share/d%d/file-%d.conf", i/20, i), string(body)))
	}
	data := archive(b, items...)
	b.SetBytes(int64(len(data)))
	b.Setenv("TMPDIR", "/dev/shm")
	var size int64
	for b.Loop() {
		d := b.TempDir()
		if _, err := Unpack(b.Context(), bytes.NewReader(data), d, Limits{}); err != nil {
			b.Fatal(err)
		}
		i, err := os.Stat(filepath.Join(d, TarSplitFile))
		if err != nil {
			b.Fatal(err)
		}
		size = i.Size()
	}
	b.ReportMetric(float64(size)*100/float64(len(data)), "%skeleton")
}
