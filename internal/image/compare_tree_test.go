package image

import (
	"archive/tar"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The entries of the tables. What does not say otherwise has a time of its own, so that a lost one is seen.
var (
	early = time.Unix(1_500_000_000, 111222333)
	late  = time.Unix(1_600_000_000, 987654321)
)

func aFile(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: early, Format: tar.FormatPAX}, body}
}

func aDir(name string, mode int64) entry {
	return entry{
		Header: tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode, ModTime: late, Format: tar.FormatPAX}}
}

func aSymlink(name, target string) entry {
	return entry{
		Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777, ModTime: early,
			Format: tar.FormatPAX}}
}

func aLink(name, target string) entry {
	return entry{
		Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644, ModTime: early,
			Format: tar.FormatPAX}}
}

func aNode(name string, kind byte, major, minor int64) entry {
	return entry{
		Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o640, Devmajor: major, Devminor: minor, ModTime: early,
			Format: tar.FormatPAX}}
}

func owned(e entry, uid, gid int) entry   { e.Uid, e.Gid = uid, gid; return e }
func moded(e entry, mode int64) entry     { e.Mode = mode; return e }
func timed(e entry, when time.Time) entry { e.ModTime = when; return e }

// stacked makes an image of gzip layers, the lowest first. Each begins with an entry for the root.
func stacked(t *testing.T, layers ...[]entry) v1.Image {
	t.Helper()
	var out [][]entry
	for _, entries := range layers {
		out = append(out, append([]entry{aDir(".", 0o755)}, entries...))
	}
	return stackedBare(t, out...)
}

// stackedBare is stacked without the entries for the root.
func stackedBare(t *testing.T, layers ...[]entry) v1.Image {
	t.Helper()
	var out []v1.Layer
	for _, entries := range layers {
		out = append(out, gz(t, entries...))
	}
	return imageOf(t, out...)
}

type layers = [][]entry

// base is a layer with something to hide, to link to and to replace.
func base() []entry {
	return []entry{
		aDir("d", 0o751), owned(aFile("d/a", "a"), 5, 6), aFile("d/b", "b"), aDir("d/sub", 0o700),
		aFile("d/sub/deep", "deep"),
		aFile("f", "f"), aSymlink("l", "f"), aSymlink("dl", "d"), aDir("empty", 0o711),
	}
}

func TestCompareTrees(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	add("one of each",
		layers{
			append(base(), aNode("null", tar.TypeChar, 1, 3), aNode("loop", tar.TypeBlock, 7, 300),
				aNode("pipe", tar.TypeFifo, 0, 0), aLink("d/h", "d/a"))},
		map[string]string{"null": "char 1:3", "loop": "block 7:300", "pipe": "fifo", "l": "symlink f"})
	add("whiteout", layers{base(), {aFile("d/.wh.a", ""), aFile(".wh.f", ""), aFile(".wh.l", ""), aFile(".wh.empty", "")}},
		map[string]string{"d/a": "nothing", "f": "nothing", "d/b": "file b", "l": "nothing", "empty": "nothing"})
	add("whiteout of nothing",
		layers{base(), {aFile(".wh.gone", ""), aFile("d/.wh.gone", ""), aFile("nowhere/.wh.gone", "")}},
		map[string]string{"gone": "nothing"},
		`"nowhere": directory, and nothing`, "the tar speaks of the directory; umoci makes none for a whiteout alone")
	add("whiteout of a tree", layers{base(), {aFile(".wh.d", "")}}, map[string]string{"d": "nothing", "dl": "symlink d"})
	add("whiteout then the same directory", layers{base(), {aFile(".wh.d", ""), aDir("d", 0o700), aFile("d/new", "new")}},
		map[string]string{"d/new": "file new", "d/a": "nothing"})
	add("the same directory then its whiteout",
		layers{base(), {aDir("d", 0o700), aFile("d/new", "new"), aFile(".wh.d", "")}},
		map[string]string{"d/new": "file new", "d/a": "nothing"},
		`"d": mtime`, "umoci sets the time of the directory before it empties it")
	add("a file then its whiteout", layers{base(), {aFile("f", "new"), aFile(".wh.f", "")}},
		map[string]string{"f": "file new"})
	add("a whiteout then the file", layers{base(), {aFile(".wh.f", ""), aFile("f", "new")}},
		map[string]string{"f": "file new"})
	add("opaque before content", layers{base(), {aDir("d", 0o755), aFile("d/.wh..wh..opq", ""), aFile("d/new", "new")}},
		map[string]string{"d/new": "file new", "d/a": "nothing", "d/sub": "nothing"})
	add("opaque after content",
		layers{base(), {aDir("d", 0o755), aFile("d/new", "new"), aFile("d/b", "B"), aFile("d/.wh..wh..opq", "")}},
		map[string]string{"d/new": "file new", "d/a": "nothing", "d/b": "file B"})
	add("opaque root", layers{base(), {aFile(".wh..wh..opq", ""), aFile("only", "1")}},
		map[string]string{"only": "file 1", "d": "nothing"})
	add("opaque of a directory that no entry describes",
		layers{base(), {aFile("d/.wh..wh..opq", ""), aFile("d/new", "new")}},
		map[string]string{"d/new": "file new", "d/a": "nothing"})
	add("whiteout in one layer, back in the next",
		layers{base(), {aFile(".wh.d", "")}, {aDir("d", 0o755), aFile("d/x", "x")}},
		map[string]string{"d/x": "file x", "d/a": "nothing"})
	add("aufs bookkeeping",
		layers{
			base(), {aDir(".wh..wh.plnk", 0o700), aFile(".wh..wh.aufs", ""), aFile(".wh..wh.plnk/1.2", "x"),
				aLink("linked", ".wh..wh.plnk/1.2")}},
		map[string]string{"f": "file f", "linked": "file x"},
		`".wh..wh.plnk": nothing`, "umoci passes over the files of aufs but not over what is in its directories",
		`".wh..wh.plnk/1.2": nothing`, "the same",
		`"linked": one file with ""`, "the same")
	add("file over file", layers{base(), {owned(timed(aFile("f", "new"), late), 9, 9)}},
		map[string]string{"f": "file new"})
	add("file over file in one layer", layers{{aFile("f", "a longer text"), aFile("f", "new")}},
		map[string]string{"f": "file new"})
	add("directory over file", layers{base(), {aDir("f", 0o700), aFile("f/x", "x")}}, map[string]string{"f/x": "file x"})
	add("directory over file in one layer", layers{{aFile("f", "1"), aDir("f", 0o700), aFile("f/x", "x")}},
		map[string]string{"f/x": "file x"})
	add("file over directory", layers{base(), {aFile("d", "now a file")}}, map[string]string{"d": "file now a file"})
	add("file over directory in one layer", layers{append(base(), aFile("d", "now a file"))},
		map[string]string{"d": "file now a file"})
	add("symlink over directory", layers{base(), {aSymlink("d", "empty")}}, map[string]string{"d": "symlink empty"})
	add("symlink over directory in one layer", layers{append(base(), aSymlink("d", "empty"))},
		map[string]string{"d": "symlink empty"})
	add("directory over directory", layers{base(), {timed(moded(owned(aDir("d", 0), 3, 4), 0o1777), early)}},
		map[string]string{"d/a": "file a"})
	add("directory twice in one layer", layers{append(base(), moded(aDir("d", 0), 0o700))},
		map[string]string{"d/a": "file a"})
	add("device over file and file over device",
		layers{{aFile("a", "a"), aNode("b", tar.TypeChar, 1, 3)}, {aNode("a", tar.TypeFifo, 0, 0), aFile("b", "b")}},
		map[string]string{"a": "fifo", "b": "file b"})
	add("symlink over symlink", layers{base(), {aSymlink("l", "d/b")}},
		map[string]string{"l": "symlink d/b", "f": "file f"})
	add("file over symlink", layers{base(), {aFile("l", "now a file")}},
		map[string]string{"l": "file now a file", "f": "file f"})
	add("directory over symlink to a directory", layers{base(), {aDir("dl", 0o700)}},
		map[string]string{"dl": "directory", "d/a": "file a"})
	upper := []entry{aFile("d/a", "upper"), aFile("d/own", "own"), aDir("d", 0o700)}
	add("the same layer twice", layers{base(), upper, {aFile("d/a", "between"), aFile("d/own", "between")}, upper},
		map[string]string{"d/a": "file upper", "d/own": "file own", "d/b": "file b"})
	add("the same layer twice, hidden in between", layers{upper, {aFile(".wh.d", "")}, upper, base()},
		map[string]string{"d/a": "file a", "d/own": "file own"})
	compareAll(t, cases)
}
