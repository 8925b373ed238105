package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/fixture"
)

// A raw file, directory and so on with usual numbers, to be changed by the cases.
func raw(magic, name string, kind byte) fixture.RawHeader {
	return fixture.RawHeader{Magic: magic, Name: name, Type: kind, Mode: fixture.Octal(0o640, 8), UID: fixture.Octal(3, 8),
		GID: fixture.Octal(4, 8), Mtime: fixture.Octal(1_500_000_000, 12)}
}

func linkTo(h fixture.RawHeader, target string) []byte { h.Link = target; return h.Entry("") }

// untimed is why a directory differs that no entry describes.
const untimed = "it gets no time of the unpacking, so that a layer is the same wherever it is unpacked"

func TestCompareTarForms(t *testing.T) {
	var cases []comparison
	add := func(name string, shows map[string]string, entries ...[]byte) *comparison {
		cases = append(cases,
			comparison{
				name: name,
				image: imageOf(t,
					gzipped(fixture.RawTar(append([][]byte{raw(fixture.MagicUstar, "./", '5').Entry("")}, entries...)...))),
				shows: shows})
		return &cases[len(cases)-1]
	}
	spaced := raw(fixture.MagicV7, "spaced", 0)
	spaced.Mode, spaced.UID, spaced.GID, spaced.Mtime = "   600 \x00", "     3 \x00", "     4  ", "13132027400 "
	add("version 7", map[string]string{"d": "directory", "f": "file v7", "h": "file v7", "l": "symlink f"},
		raw(fixture.MagicV7, "d/", 0).Entry(""), raw(fixture.MagicV7, "f", 0).Entry("v7"),
		linkTo(raw(fixture.MagicV7, "h", '1'), "f"), linkTo(raw(fixture.MagicV7, "l", '2'), "f"), spaced.Entry("spaces"))
	full := raw(fixture.MagicUstar, strings.Repeat("n", 100), '0')
	full.Prefix = strings.Repeat("p", 54) + "/" + strings.Repeat("q", 100)
	add("ustar with full name and prefix", map[string]string{full.Prefix + "/" + full.Name: "file x"}, full.Entry("x")).
		differs = map[string]string{`"ppp`: untimed}
	add("ustar with a full link name", nil, raw(fixture.MagicUstar, "f", '0').Entry(""),
		linkTo(raw(fixture.MagicUstar, "l", '2'), strings.Repeat("t", 100)))
	contiguous := raw(fixture.MagicUstar, "contiguous", '7')
	add("a contiguous file", map[string]string{"contiguous": "file x"}, contiguous.Entry("x")).never = "unknown typeflag"
	big := raw(fixture.MagicGNU, "big", '0')
	big.UID, big.GID, big.Mtime, big.Size, big.Mode = fixture.Base256(3_000_000_000, 8), fixture.Base256(4_000_000_000, 8),
		fixture.Base256(-86400, 12), fixture.Base256(1, 12), fixture.Base256(0o604, 8)
	add("base 256", map[string]string{"big": "file x"}, big.Entry("x"))
	long := strings.Repeat("long/", 40) + "name"
	add("long names of GNU", map[string]string{long: "file x", "l": "symlink " + long},
		raw(fixture.MagicGNU, "././@LongLink", 'L').Entry(long+"\x00"), raw(fixture.MagicGNU, long[:100], '0').Entry("x"),
		raw(fixture.MagicGNU, "././@LongLink", 'K').Entry(long+"\x00"), linkTo(raw(fixture.MagicGNU, "l", '2'), long[:100])).
		differs = map[string]string{`"long`: untimed}
	add("pax records", map[string]string{"new name": "file body", "l": "symlink a target"},
		fixture.PaxEntry(false, "path", "new name", "uid", "3000000000", "gid", "4000000000", "mtime", "-1.25", "size", "4",
			"atime", "5.5", "BERTH.unknown", "x"),
		func() []byte {
			h := raw(fixture.MagicUstar, "old", '0')
			h.Size = fixture.Octal(0, 12)
			return h.Entry("body")
		}(),
		fixture.PaxEntry(false, "linkpath", "a target", "mtime", "1500000000.000000001"),
		linkTo(raw(fixture.MagicUstar, "l", '2'), "other"),
		fixture.PaxEntry(false, "mtime", "1500000000.1234567891234"), raw(fixture.MagicUstar, "finer", '0').Entry(""))
	add("a global header", map[string]string{"f": "file x"}, fixture.PaxEntry(true, "comment", "a commit"),
		raw(fixture.MagicUstar, "f", '0').Entry("x")).never = "unknown typeflag"
	compareAll(t, cases)
}

func TestCompareNames(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	add("odd names",
		layers{
			{aFile("new\nline", "1"), aFile("back\\slash", "2"), aFile("not \xff utf-8", "3"), aFile("-dash", "4"),
				aFile("*?[", "5"), aFile(" blank ", "6"), aFile("tab\t", "7"),
				aFile("é", "8"), aFile("e\u0301", "9"), aSymlink("l\xfe", "to \xff"), aLink("h\xfd", "not \xff utf-8"),
				aFile("...", "10"), aFile("..x", "11"), aFile(".wh", "12")}},
		map[string]string{"new\nline": "file 1", "h\xfd": "file 3", "l\xfe": "symlink to \xff"})
	add("odd names hidden",
		layers{{aFile("new\nline", "1"), aFile("not \xff utf-8", "3"), aFile("kept", "k")},
			{aFile(".wh.new\nline", ""), aFile(".wh.not \xff utf-8", "")}},
		map[string]string{"new\nline": "nothing", "not \xff utf-8": "nothing"})
	add("spellings of a path",
		layers{
			{aDir("./a", 0o711), aFile("./a/1", "1"), aFile("/a/2", "2"), aFile("a//3", "3"), aFile("a/./4", "4"),
				aFile("a/../a/5", "5"), aFile("//6", "6"), aFile("./7", "7")}},
		map[string]string{"a/1": "file 1", "a/2": "file 2", "a/3": "file 3", "a/4": "file 4", "a/5": "file 5", "6": "file 6",
			"7": "file 7"})
	name := strings.Repeat("n", 255)
	add("longest name",
		layers{{aFile(name, "x"), aDir(name[:254], 0o700), aFile(name[:254]+"/"+name, "y"), aLink("h", name)}},
		map[string]string{name: "file x"})
	add("longest target", layers{{aSymlink("l", strings.Repeat("t/", 2047))}}, nil)
	deep := strings.Repeat("d/", 1800)
	add("deep path", layers{{aFile(deep+"f", "x")}, {aFile(deep+"g", "y")}},
		map[string]string{deep + "f": "file x", deep + "g": "file y"},
		`"d`, untimed)
	compareAll(t, cases)
}

// forms are what GNU tar writes.
var forms = map[string][]string{
	"v7": {"--format=v7", "--exclude=./null", "--exclude=./pipe"}, "oldgnu": {"--format=oldgnu"}, "gnu": {"--format=gnu"},
	"ustar": {"--format=ustar"}, "posix": {"--format=posix", "--xattrs", "--xattrs-include=*"},
	"gnu-sparse": {"--format=gnu", "-S"}, "oldgnu-sparse": {"--format=oldgnu", "-S"},
	"pax-sparse-0-0": {"--format=posix", "-S", "--sparse-version=0.0"},
	"pax-sparse-0-1": {"--format=posix", "-S", "--sparse-version=0.1"},
	"pax-sparse-1-0": {"--format=posix", "-S", "--sparse-version=1.0", "--xattrs", "--xattrs-include=*"},
}

// TestCompareGNUTar has GNU tar write a tree in all its forms, and compares with what GNU tar makes of it as well: it
// reads archives by other code than we and umoci do.
func TestCompareGNUTar(t *testing.T) {
	tree := plant(t)
	var cases []comparison
	for name, flags := range forms {
		dir := t.TempDir()
		archive, again := filepath.Join(dir, "a.tar"), filepath.Join(dir, "again")
		run(t, "tar", append(append([]string{"-cf", archive, "-C", tree, "--numeric-owner", "--sort=name"}, flags...),
			".")...)
		if err := os.Mkdir(again, 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, "tar", "-xpf", archive, "-C", again, "--numeric-owner", "--same-owner", "--xattrs", "--xattrs-include=*")
		plain, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		c := comparison{name: name, image: imageOf(t, gzipped(plain)), equals: again}
		if strings.HasSuffix(name, "gnu-sparse") {
			c.never = "unknown typeflag" // the sparse files of GNU
		}
		cases = append(cases, c)
	}
	compareAll(t, cases)
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// plant makes a tree with all that every form of tar can hold, sparse files among it.
func plant(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.Mkdir(at("d"), 0o751), os.WriteFile(at("d/f"), []byte("body"), 0o640), os.Link(at("d/f"), at("h")),
		os.Symlink("d/f", at("l")),
		unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(at("pipe"), 0o600),
		os.Lchown(at("d/f"), 1000, 2000),
		unix.Setxattr(at("d/f"), "user.x", []byte("1\x00\xff"), 0), os.WriteFile(at("empty"), nil, 0o644),
		os.Mkdir(at(strings.Repeat("n", 90)), 0o700),
		sparse(at("hole-only"), 1<<20), sparse(at("begins"), 3<<20, 0), sparse(at("ends"), 3<<20, 3<<20-4096),
		sparse(at("middle"), 3<<20, 1<<20),
		sparse(at("many"), 16<<20, many(200, 64<<10)...), sparse(at("odd"), 5_000_001, 1_000_000, 4_999_000),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	when := time.Unix(1_500_000_000, 123456789)
	err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		ts, _ := unix.TimeToTimespec(when)
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// sparse makes a file of a size, with a little at each of the offsets.
func sparse(name string, size int64, offsets ...int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	for _, at := range offsets {
		if _, err := f.WriteAt([]byte("here"), at); err != nil {
			return err
		}
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Close()
}

func many(n int, step int64) []int64 {
	var out []int64
	for i := range n {
		out = append(out, int64(i)*step)
	}
	return out
}
