package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/limit"
)

var epoch = time.Unix(1_600_000_000, 123456789)

type item struct {
	tar.Header
	body string
}

func dir(name string, mode int64) item {
	return item{Header: tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}}
}

func file(name, body string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}, body}
}

func symlink(name, target string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}}
}

func hardlink(name, target string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}}
}

func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, i := range items {
		h := i.Header
		h.Format = tar.FormatPAX
		if h.ModTime.IsZero() {
			h.ModTime = epoch
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(i.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func unpack(t testing.TB, items ...item) (string, *Result) {
	t.Helper()
	d := t.TempDir()
	res, err := Unpack(t.Context(), bytes.NewReader(archive(t, items...)), d, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return d, res
}

// stack unpacks layers, the lowest first, finalizes each and proves it against its manifest.
func stack(t testing.TB, layers ...[]item) []string {
	t.Helper()
	var lowers, dirs []string
	for _, items := range layers {
		d, res := unpack(t, items...)
		if err := Finalize(t.Context(), d, saved(t, d, res), treesAt(t, lowers...)); err != nil {
			t.Fatal(err)
		}
		proven(t, d)
		exact(t, d, archive(t, items...))
		lowers = append([]string{filepath.Join(d, FS)}, lowers...)
		dirs = append(dirs, d)
	}
	return dirs
}

func proven(t testing.TB, d string) {
	t.Helper()
	err := Verify(context.Background(), d, func(p, problem string) { t.Errorf("%s %s", p, problem) })
	if err != nil {
		t.Fatal(err)
	}
}

// show lists a tree: one line for each entry, with type, mode, owner, and link, content or number.
func show(t testing.TB, root string) []string {
	t.Helper()
	var out []string
	inodes := map[uint64]string{}
	err := filepath.Walk(root, func(full string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, full)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(full, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s %o %d:%d", rel, typeOf(&st), st.Mode&0o7777, st.Uid, st.Gid)
		switch typeOf(&st) {
		case typeWhiteout:
			line = rel + " whiteout"
		case typeSymlink:
			target, _ := os.Readlink(full)
			line = rel + " -> " + target
		case typeFile:
			body, _ := os.ReadFile(full)
			if len(body) < 64 {
				line += " " + string(body)
			}
			if first, ok := inodes[st.Ino]; ok {
				line += " = " + first
			}
			inodes[st.Ino] = rel
		case typeDir:
			if opaque(full) {
				line += " opaque"
			}
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(out)
	return out
}

func opaque(full string) bool {
	v, err := lgetxattr(full, opaqueXattr)
	return err == nil && string(v) == "y"
}

func wantTree(t testing.TB, d string, want ...string) {
	t.Helper()
	got := show(t, filepath.Join(d, FS))
	sort.Strings(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("tree is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func owned(i item, uid, gid int) item { i.Uid, i.Gid = uid, gid; return i }
func moded(i item, mode int64) item   { i.Mode = mode; return i }
func pax(i item, k, v string) item    { i.PAXRecords = map[string]string{k: v}; return i }

func TestLayersTable(t *testing.T) {
	cases := []struct {
		name   string
		layers [][]item
		top    []string
	}{
		{"plain", [][]item{{dir("a", 0o750), owned(file("a/b", "x"), 7, 8), symlink("l", "a/b"), hardlink("h", "a/b")}},
			[]string{"a d 750 0:0", "a/b f 644 7:8 x", "l -> a/b", "h f 644 7:8 x = a/b"}},
		{"special bits", [][]item{{moded(owned(file("su", "x"), 1, 2), 0o6755), dir("tmp", 0o1777)}},
			[]string{"su f 6755 1:2 x", "tmp d 1777 0:0"}},
		{"devices", [][]item{{
			{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}},
			{Header: tar.Header{Name: "loop", Typeflag: tar.TypeBlock, Devmajor: 7, Devminor: 0, Mode: 0o660}},
			{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600}}}},
			[]string{"null c 666 0:0", "loop b 660 0:0", "pipe p 600 0:0"}},
		{"absolute names stay inside", [][]item{{file("/etc/x", "1"), file("./y", "2"), file("a/../z", "3")}},
			[]string{"etc d 755 0:0", "etc/x f 644 0:0 1", "y f 644 0:0 2", "z f 644 0:0 3"}},
		{"absolute symlink parent is resolved inside", [][]item{{symlink("out", "/real"), file("out/f", "1")}},
			[]string{"out -> /real", "real d 755 0:0", "real/f f 644 0:0 1"}},
		{"climbing symlink parent is clamped", [][]item{{symlink("out", "../../../tmp"), file("out/f", "1")}},
			[]string{"out -> ../../../tmp", "tmp d 755 0:0", "tmp/f f 644 0:0 1"}},
		{
			"whiteouts",
			[][]item{{file("a", "1"), dir("d", 0o755), file("d/x", "2")},
				{file(".wh.a", ""), dir("d", 0o755), file("d/.wh..wh..opq", ""), file(".wh.none", "")}},
			[]string{"a whiteout", "d d 755 0:0 opaque", "none whiteout"}},
		{"whiteouts of nothing leave nothing",
			[][]item{{file("a", "1"), file(".wh.x", "")},
				{file("b/.wh.x", ""), dir("o", 0o755), file("o/.wh.x", ""), file("o/.wh..wh..opq", "")}},
			[]string{"b d 755 0:0", "o d 755 0:0 opaque"}},
		{"whiteouts of the lowest layer", [][]item{{file("a", "1"), file(".wh.x", "")}}, []string{"a f 644 0:0 1"}},
		{"whiteout of what this layer brings",
			[][]item{{file("a", "1"), dir("d", 0o755), file("d/x", "2")},
				{file("a", "new"), file(".wh.a", ""), dir("d", 0o700), file("d/y", "3"), file(".wh.d", "")}},
			[]string{"a f 644 0:0 new", "d d 700 0:0 opaque", "d/y f 644 0:0 3"}},
		{"whiteout first, then a directory",
			[][]item{{dir("d", 0o711), file("d/x", "2")}, {file(".wh.d", ""), file("d/y", "3")}},
			[]string{"d d 755 0:0 opaque", "d/y f 644 0:0 3"}},
		{"implied parents take after those below",
			[][]item{{owned(dir("d", 0o1711), 3, 4), dir("d/e", 0o700)}, {file("d/e/f", "1")}},
			[]string{"d d 1711 3:4", "d/e d 700 0:0", "d/e/f f 644 0:0 1"}},
		{"implied parents of nothing", [][]item{{file("x", "")}, {file("d/e/f", "1")}},
			[]string{"d d 755 0:0", "d/e d 755 0:0", "d/e/f f 644 0:0 1"}},
		{"described after implied", [][]item{{dir("d", 0o711)}, {file("d/f", "1"), dir("d", 0o750)}},
			[]string{"d d 750 0:0", "d/f f 644 0:0 1"}},
		{"through a symlink below",
			[][]item{{dir("usr", 0o755), dir("usr/lib", 0o711), symlink("lib", "usr/lib")},
				{file("lib/x/y", "1"), file("lib/.wh.z", "")}},
			[]string{"usr d 755 0:0", "usr/lib d 711 0:0", "usr/lib/x d 755 0:0", "usr/lib/x/y f 644 0:0 1",
				"usr/lib/z whiteout"}},
		{"through a climbing symlink below", [][]item{{symlink("up", "../../../../etc")}, {file("up/x", "1")}},
			[]string{"etc d 755 0:0", "etc/x f 644 0:0 1"}},
		{"through two symlinks below",
			[][]item{{dir("c", 0o700), dir("c/d", 0o701), symlink("b", "/c"), symlink("a", "b/d")},
				{dir("c", 0o770), file("c/k", "k"), file("a/x", "1")}},
			[]string{"c d 770 0:0", "c/k f 644 0:0 k", "c/d d 701 0:0", "c/d/x f 644 0:0 1"}},
		{"hard link to a file below",
			[][]item{{dir("d", 0o711), moded(owned(file("d/a", "body"), 5, 6), 0o4755)}, {hardlink("b", "d/a")}},
			[]string{"b f 4755 5:6 body", "d d 711 0:0", "d/a f 4755 5:6 body = b"}},
		{"hard link chain below", [][]item{{file("a", "body")}, {hardlink("c", "b"), hardlink("b", "a")}},
			[]string{"a f 644 0:0 body", "b f 644 0:0 body = a", "c f 644 0:0 body = b"}},
		{"hard link through a symlink below",
			[][]item{{dir("usr", 0o755), file("usr/a", "body"), symlink("u", "usr")}, {hardlink("b", "u/a")}},
			[]string{"b f 644 0:0 body", "usr d 755 0:0", "usr/a f 644 0:0 body = b"}},
		{"hard link to what this layer removes", [][]item{{file("a", "body")}, {file(".wh.a", ""), hardlink("b", "a")}},
			[]string{"a whiteout", "b f 644 0:0 body"}},
		{"the last of two wins",
			[][]item{
				{file("a", "1"), hardlink("h", "a"), file("a", "2"), dir("d", 0o755), file("d/x", "3"), file("d", "4"),
					file("e", "5"), dir("e", 0o700)}},
			[]string{"a f 644 0:0 2", "h f 644 0:0 1", "d f 644 0:0 4", "e d 700 0:0 opaque"}},
		{"a name that is not UTF-8",
			[][]item{{item{tar.Header{Name: "b\xff", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}, "1"}}},
			[]string{"b\xff f 644 0:0 1"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dirs := stack(t, c.layers...)
			wantTree(t, dirs[len(dirs)-1], c.top...)
		})
	}
}

func TestIndependence(t *testing.T) {
	if _, res := unpack(t, dir("a", 0o755), file("a/b", "")); !res.Independent() {
		t.Error("a layer that describes its directories depends on nothing")
	}
	if _, res := unpack(t, file("a/b", "")); res.Independent() {
		t.Error("an implied directory depends on those below")
	}
	if _, res := unpack(t, hardlink("a", "b")); res.Independent() {
		t.Error("a link to below depends on it")
	}
	if _, res := unpack(t, file(".wh..wh..opq", "")); !res.Opaque {
		t.Error("an opaque root is not told")
	}
}

func TestMetadata(t *testing.T) {
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	f := file("cap", "x")
	f.PAXRecords = map[string]string{paxXattr + "security.capability": capability, paxXattr + "user.note": "hi\x00there",
		paxXattr + "trusted.overlay.opaque": "y", paxXattr + "trusted.overlay.redirect": "/etc"}
	d, _ := unpack(t, pax(dir("d", 0o755), paxXattr+"user.d", "1"), file("d/f", ""), f)
	proven(t, d)
	full := filepath.Join(d, FS, "cap")
	for name, want := range map[string]string{"security.capability": capability, "user.note": "hi\x00there"} {
		if got, err := lgetxattr(full, name); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if opaque(full) {
		t.Error("trusted.overlay.opaque reached the disk")
	}
	if _, err := lgetxattr(full, "trusted.overlay.redirect"); err == nil {
		t.Error("trusted.overlay.redirect reached the disk")
	}
	for _, p := range []string{"cap", "d", "d/f"} {
		if st, err := os.Lstat(filepath.Join(d, FS, p)); err != nil || !st.ModTime().Equal(epoch) {
			t.Errorf("%s: modification time %v, %v", p, st.ModTime(), err)
		}
	}
}

func TestLongNames(t *testing.T) {
	long := strings.Repeat("n", 255)
	deep := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 200)+"/", 18), "/")
	d, _ := unpack(t, file(long, "1"), file(deep+"/f", "2"), symlink("s", strings.Repeat("t/", 2000)))
	proven(t, d)
	if _, err := Unpack(t.Context(), bytes.NewReader(archive(t, file(strings.Repeat("n", 256), ""))), t.TempDir(),
		Limits{}); err == nil {
		t.Error("a component of 256 bytes was accepted")
	}
}

// TestSparse unpacks a sparse file in the GNU PAX 1.0 form, written by hand because archive/tar cannot.
func TestSparse(t *testing.T) {
	const size = 8 << 20
	payload := "2\n4194304\n4\n8388608\n0\n"
	payload += strings.Repeat("\x00", 512-len(payload)) + "DATA"
	i := item{tar.Header{Name: "GNUSparseFile.0/big", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(payload))},
		payload}
	plain := archive(t, i)
	// archive/tar refuses to write GNU.sparse records: put a PAX header of our own before it.
	records := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=big",
		fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		n := len(kv) + 2
		for len(fmt.Sprint(n))+len(kv)+2 != n {
			n = len(fmt.Sprint(n)) + len(kv) + 2
		}
		records += fmt.Sprintf("%d %s\n", n, kv)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(
		&tar.Header{Name: "pax", Typeflag: tar.TypeReg, Size: int64(len(records)), Mode: 0o644,
			Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(records))
	w.Flush()
	head := buf.Bytes()
	head[156] = 'x'
	rechecksum(head[:512])
	// drop the PAX header that carries the sub-second time
	var second bytes.Buffer
	w = tar.NewWriter(&second)
	i.Header.ModTime, i.Header.Format = time.Unix(1_600_000_000, 0), tar.FormatUSTAR
	if err := w.WriteHeader(&i.Header); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(payload))
	w.Close()
	_ = plain
	d := t.TempDir()
	if _, err := Unpack(t.Context(), bytes.NewReader(append(head, second.Bytes()...)), d, Limits{}); err != nil {
		t.Fatal(err)
	}
	proven(t, d)
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(d, FS, "big"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("size %d, %d bytes on disk: the holes are filled", st.Size, st.Blocks*512)
	}
}

func rechecksum(h []byte) {
	copy(h[148:156], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestHostile(t *testing.T) {
	cases := map[string][]item{
		"dotdot":             {file("../evil", "x")},
		"inner dotdot":       {file("a/../../evil", "x")},
		"absolute dotdot":    {file("/../evil", "x")},
		"link out":           {hardlink("a", "../../etc/passwd")},
		"link to directory":  {dir("d", 0o755), hardlink("a", "d")},
		"link to itself":     {file("a", ""), hardlink("a", "a")},
		"whiteout of nobody": {file(".wh.", "")},
		"whiteout of parent": {file("d/.wh...", "")},
		"whiteout of dot":    {file("d/.wh..", "")},
		"root as a file":     {file("./", "")},
		"root as a link":     {symlink(".", "/etc")},
		"negative owner":     {owned(file("a", ""), -1, 0)},
		"owner of 32 bits":   {owned(file("a", ""), 1<<32-1, 0)},
		"empty symlink":      {symlink("a", "")},
		"unknown type":       {{Header: tar.Header{Name: "a", Typeflag: 'Z'}}},
	}
	for name, items := range cases {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			d := filepath.Join(parent, "layer")
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
			_, err := Unpack(t.Context(), bytes.NewReader(rawArchive(items...)), d, Limits{})
			var hostile *HostileError
			if !errors.As(err, &hostile) {
				t.Errorf("error is %v, want a HostileError", err)
			}
			if left, _ := os.ReadDir(parent); len(left) != 1 {
				t.Errorf("something was written outside: %v", left)
			}
		})
	}
}

// rawArchive writes headers as they are, for what archive/tar will not write.
func rawArchive(items ...item) []byte {
	var buf bytes.Buffer
	for _, i := range items {
		h := make([]byte, 512)
		copy(h, i.Name)
		copy(h[100:], fmt.Sprintf("%07o", i.Mode))
		number(h[108:116], int64(i.Uid))
		number(h[116:124], int64(i.Gid))
		copy(h[124:], fmt.Sprintf("%011o", len(i.body)))
		copy(h[136:], fmt.Sprintf("%011o", 0))
		h[156] = i.Typeflag
		copy(h[157:], i.Linkname)
		copy(h[257:], "ustar  \x00")
		rechecksum(h)
		buf.Write(h)
		buf.WriteString(i.body)
		buf.Write(make([]byte, (512-len(i.body)%512)%512))
	}
	buf.Write(make([]byte, 1024))
	return buf.Bytes()
}

// number writes a numeric field in GNU's base-256 form where octal cannot hold it.
func number(field []byte, v int64) {
	if v >= 0 && v < 1<<20 {
		copy(field, fmt.Sprintf("%07o", v))
		return
	}
	for i := len(field) - 1; i >= 0; i-- {
		field[i] = byte(v)
		v >>= 8
	}
	field[0] |= 0x80
}

func TestFinalizeRefuses(t *testing.T) {
	cases := map[string][2][]item{
		"link to nowhere":        {{file("x", "")}, {hardlink("a", "gone")}},
		"link to a directory":    {{dir("d", 0o755)}, {hardlink("a", "d")}},
		"links that form a ring": {{file("x", "")}, {hardlink("a", "b"), hardlink("b", "a")}},
		"parent is a loop":       {{symlink("l", "l")}, {file("l/x", "")}},
		"parent leads to a file": {{file("f", ""), symlink("l", "f")}, {file("l/x", "")}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			low, _ := unpack(t, c[0]...)
			d, res := unpack(t, c[1]...)
			if err := Finalize(t.Context(), d, res, treesAt(t, filepath.Join(low, FS))); err == nil {
				t.Error("finalized")
			}
		})
	}
}

func TestLimits(t *testing.T) {
	_, err := Unpack(t.Context(), bytes.NewReader(archive(t, file("a", "12345"), file("b", "12345"))), t.TempDir(),
		Limits{Bytes: 9})
	if !fail.As[*limit.Error](err) {
		t.Errorf("10 bytes under a limit of 9: %v", err)
	}
	_, err = Unpack(t.Context(), bytes.NewReader(archive(t, file("a", ""), file("b", ""))), t.TempDir(),
		Limits{Entries: 1})
	if !fail.As[*limit.Error](err) {
		t.Errorf("2 entries under a limit of 1: %v", err)
	}
	if _, err = Unpack(t.Context(), bytes.NewReader(archive(t, file("a", strings.Repeat("x", 4096)))[:2048]), t.TempDir(),
		Limits{}); err == nil {
		t.Error("a truncated tar was accepted")
	}
}

func TestVerifyFinds(t *testing.T) {
	damage := map[string]func(root string) error{
		"has other content":   func(r string) error { return os.WriteFile(r+"/f", []byte("hellp"), 0) },
		"is missing":          func(r string) error { return os.Remove(r + "/f") },
		"is in no manifest":   func(r string) error { return os.WriteFile(r+"/d/new", nil, 0o600) },
		"has mode":            func(r string) error { return unix.Chmod(r+"/f", 0o4644) },
		"belongs to":          func(r string) error { return os.Lchown(r+"/f", 9, 9) },
		"points to":           func(r string) error { os.Remove(r + "/l"); return os.Symlink("elsewhere", r+"/l") },
		"is no longer opaque": func(r string) error { return unix.Removexattr(r+"/d", "trusted.overlay.opaque") },
		"is of type":          func(r string) error { os.Remove(r + "/w"); return os.WriteFile(r+"/w", nil, 0o600) },
		"has another value":   func(r string) error { return unix.Setxattr(r+"/f", "user.a", []byte("2"), 0) },
		"no longer the same": func(r string) error {
			os.Remove(r + "/h")
			return os.WriteFile(r+"/h", []byte("hello"), 0o644)
		},
		"another modification": func(r string) error { return os.Chtimes(r+"/f", time.Now(), time.Now()) },
		"has 6 bytes, not 5":   func(r string) error { return os.WriteFile(r+"/f", []byte("hello!"), 0) },
	}
	for want, do := range damage {
		t.Run(want, func(t *testing.T) {
			d, _ := unpack(t, dir("d", 0o755), file("d/.wh..wh..opq", ""), pax(file("f", "hello"), paxXattr+"user.a", "1"),
				symlink("l", "f"), hardlink("h", "f"), file(".wh.w", ""))
			proven(t, d)
			root := filepath.Join(d, FS)
			if err := do(root); err != nil {
				t.Fatal(err)
			}
			if want != "another modification" { // it must be found without the help of the time
				for _, p := range []string{"f", "l", "d"} {
					_ = setTimes(unix.AT_FDCWD, filepath.Join(root, p), epoch)
				}
			}
			var found []string
			if err := Verify(t.Context(), d, func(p, problem string) { found = append(found, p+" "+problem) }); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(found, "\n"), want) {
				t.Errorf("found %q", found)
			}
		})
	}
}

// FuzzUnpack feeds any bytes as a tar: nothing may appear outside the layer, and what unpacks must verify and
// give its tar back.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, dir("a", 0o755), file("a/b", "x"), hardlink("c", "a/b"), symlink("l", "../..")))
	f.Add(archive(f, symlink("out", "/tmp"), file("out/f", "1"), file(".wh.x", ""), file("out/.wh..wh..opq", "")))
	f.Add(rawArchive(file("../evil", "x")))
	f.Add(archive(f, file("a", "1"), file("a", "2"), dir("a", 0o700), file("a/b", "3"), file(".wh.a", "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		d := filepath.Join(parent, "layer")
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		res, err := Unpack(t.Context(), bytes.NewReader(data), d, Limits{Bytes: 1 << 20, Entries: 100})
		if err == nil {
			exact(t, d, data)
			err = Finalize(t.Context(), d, res, Trees{})
		}
		if err == nil {
			proven(t, d)
			exact(t, d, data)
		}
		if left, _ := os.ReadDir(parent); len(left) != 1 {
			t.Fatalf("something was written outside: %v", left)
		}
	})
}
