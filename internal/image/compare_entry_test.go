package image

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
)

// addTo returns a function that appends a case of stacked layers: its facts, and pairs of a difference and its reason.
func addTo(t *testing.T, cases *[]comparison) func(name string, l layers, shows map[string]string,
	differs ...string) *comparison {
	return func(name string, l layers, shows map[string]string, differs ...string) *comparison {
		c := comparison{name: name, image: stacked(t, l...), shows: shows, differs: map[string]string{}}
		for i := 0; i < len(differs); i += 2 {
			c.differs[differs[i]] = differs[i+1]
		}
		*cases = append(*cases, c)
		return &(*cases)[len(*cases)-1]
	}
}

func TestCompareLinks(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	add("hard link to a lower layer", layers{base(), {aLink("h", "d/a")}}, map[string]string{"h": "file a"})
	add("hard links to two lower layers",
		layers{base(), {aFile("d/new", "new")}, {aLink("h", "d/a"), aLink("i", "d/new"), aLink("j", "d/a")}},
		map[string]string{"h": "file a", "i": "file new", "j": "file a"})
	add("hard link chain", layers{{aFile("a", "a"), aLink("b", "a"), aLink("c", "b"), aLink("x/d", "c")}},
		map[string]string{"x/d": "file a"},
		`"x": mtime 1970-01-01T00:00:00Z`, untimed)
	add("hard link chain into a lower layer", layers{base(), {aLink("b", "d/a"), aLink("c", "b"), aLink("e", "c")}},
		map[string]string{"e": "file a"})
	add("hard link to a symlink", layers{{aFile("f", "f"), aSymlink("l", "f"), aLink("h", "l")}},
		map[string]string{"h": "symlink f"})
	add("hard link to a symlink in a lower layer", layers{base(), {aLink("h", "l")}}, map[string]string{"h": "symlink f"})
	add("hard link to a broken symlink", layers{{aSymlink("l", "nowhere"), aLink("h", "l")}},
		map[string]string{"h": "symlink nowhere"})
	add("hard link to a device and a fifo",
		layers{{aNode("n", tar.TypeChar, 1, 3), aLink("m", "n"), aNode("p", tar.TypeFifo, 0, 0), aLink("q", "p")}},
		map[string]string{"m": "char 1:3", "q": "fifo"})
	add("hard link to what replaced a device",
		layers{{aNode("n", tar.TypeChar, 1, 3), aFile("n", "text"), aLink("m", "n"),
			folder("d"), aNode("d/n", tar.TypeChar, 1, 3), aFile("d", "text"), folder("d"), aFile("d/n", "more"),
			aLink("k", "d/n")}},
		map[string]string{"m": "file text", "k": "file more"})
	add("hard link to what the layer replaces", layers{base(), {aFile("d/a", "new"), aLink("h", "d/a")}},
		map[string]string{"h": "file new", "d/a": "file new"})
	add("hard link then its target replaced", layers{{aFile("a", "old"), aLink("h", "a"), aFile("a", "new")}},
		map[string]string{"h": "file old", "a": "file new"})
	add("hard link over a file", layers{base(), {aLink("f", "d/a")}}, map[string]string{"f": "file a"})
	add("hard link over a directory", layers{base(), {aLink("d/sub", "d/a")}}, map[string]string{"d/sub": "file a"})
	add("hard link through a symlinked directory", layers{base(), {aLink("h", "dl/a")}}, map[string]string{"h": "file a"})
	add("hard link through an absolute symlink", layers{append(base(), aSymlink("abs", "/d")), {aLink("h", "abs/a")}},
		map[string]string{"h": "file a"})
	add("hard link with an absolute target", layers{base(), {aLink("h", "/d/a"), aLink("i", "./d/../d/b")}},
		map[string]string{"h": "file a", "i": "file b"})
	add("hard linked in the lower layer and changed above", layers{{aFile("a", "a"), aLink("b", "a")}, {aFile("b", "b")}},
		map[string]string{"a": "file a", "b": "file b"})
	add("hard linked in the lower layer and one name hidden",
		layers{{aFile("a", "a"), aLink("b", "a"), aLink("c", "a")}, {aFile(".wh.a", "")}},
		map[string]string{"a": "nothing", "b": "file a"})
	add("hard link with setuid and an owner",
		layers{{moded(owned(aFile("su", "x"), 7, 8), 0o6755), aLink("h", "su")}, {aLink("i", "su")}},
		map[string]string{"i": "file x"},
		`"i": one file with`, "in an overlay a file of a lower layer that gets another name is copied up under the name it "+
			"was linked by",
		`"su": one file with`, "the same", `"h": one file with`, "the same")
	add("a layer of links between two bases",
		layers{base(), {aFile("d/new", "n")}, {aLink("d/h1", "d/new"), aLink("d/h2", "d/h1"), aFile(".wh.f", "")}},
		map[string]string{"d/h2": "file n", "f": "nothing"})
	compareAll(t, cases)
}

// TestCompareParents has entries whose parents are not what the layer says, or of which it says nothing.
func TestCompareParents(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	own := moded(owned(aDir("d", 0), 3, 4), 0o1770)
	add("implied parent of a lower layer", layers{{own, aFile("d/a", "a")}, {aFile("d/b", "b")}},
		map[string]string{"d/b": "file b"})
	add("described after its content", layers{{aFile("d/b", "b"), own}}, map[string]string{"d/b": "file b"})
	add("root with an owner and a mode", layers{{owned(aDir("/", 0o700), 5, 6), aFile("a", "a")}}, nil)
	for name, l := range map[string]layers{
		"root described below": {{owned(aDir("./", 0o711), 5, 6), aFile("a", "a")}, {aFile("b", "b")}},
		"root described in between": {{aFile("a", "a")}, {owned(aDir("./", 0o711), 5, 6)}, {aFile("b", "b")},
			{aFile("c", "c")}},
		"root described by no layer": {{aFile("a", "a")}, {aFile("b", "b")}},
		"root described by two":      {{owned(aDir("./", 0o711), 5, 6)}, {moded(aDir("./", 0), 0o700)}, {aFile("c", "c")}},
	} {
		cases = append(cases, comparison{name: name, image: stackedBare(t, l...)})
	}
	usrmerge := []entry{aDir("usr", 0o755), aDir("usr/bin", 0o755), aFile("usr/bin/ls", "ls"), aSymlink("bin", "usr/bin")}
	add("through a symlink of a lower layer", layers{usrmerge, {aFile("bin/x", "x"), aFile("bin/.wh.ls", "")}},
		map[string]string{"bin": "symlink usr/bin", "usr/bin/x": "file x", "usr/bin/ls": "nothing"})
	add("two spellings of one file",
		layers{usrmerge, {aFile("usr/bin/x", "1"), aLink("h", "usr/bin/x"), aFile("bin/x", "2")}},
		map[string]string{"usr/bin/x": "file 2", "h": "file 1"})
	add("two spellings of one file, the real one last",
		layers{usrmerge, {aFile("bin/x", "1"), aFile("usr/bin/x", "the second")}},
		map[string]string{"usr/bin/x": "file 1"},
		`"usr/bin/x": size 1, and 10`, "that both are one file shows only over this base, when it is no longer known which "+
			"came last",
		`"usr/bin/x": content`, "the same")
	add("many files through a symlink",
		layers{usrmerge, append(manyFiles("bin/", 500), aLink("bin/h", "bin/f1"), aLink("g", "usr/bin/ls"))},
		map[string]string{"usr/bin/f499": "file 499", "usr/bin/h": "file 1", "g": "file ls"})
	add("through a symlink of the same layer", layers{append(usrmerge, aFile("bin/x", "x"))},
		map[string]string{"bin": "symlink usr/bin", "usr/bin/x": "file x"})
	add("a directory entry over a symlink", layers{usrmerge, {aDir("bin", 0o755), aFile("bin/x", "x")}},
		map[string]string{"bin": "directory", "bin/x": "file x", "usr/bin/x": "nothing"})
	add("through a climbing symlink", layers{{aSymlink("up", "../../../up2"), aDir("up2", 0o755)}, {aFile("up/x", "x")}},
		map[string]string{"up2/x": "file x"})
	add("through an absolute symlink", layers{{aSymlink("abs", "/real"), aDir("real", 0o711)}, {aFile("abs/x", "x")}},
		map[string]string{"real/x": "file x"})
	add("through a chain of symlinks",
		layers{{aSymlink("one", "two"), aSymlink("two", "three"), aDir("three", 0o711)}, {aFile("one/x", "x")}},
		map[string]string{"three/x": "file x"})
	compareAll(t, cases)
}

func manyFiles(dir string, n int) []entry {
	var out []entry
	for i := range n {
		out = append(out, aFile(fmt.Sprint(dir, "f", i), fmt.Sprint(i)))
	}
	return out
}

func TestCompareMetadata(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	var modes []entry
	for _, m := range []int64{0, 0o1, 0o111, 0o222, 0o400, 0o777, 0o1777, 0o2755, 0o4755, 0o6755, 0o7777, 0o7000} {
		modes = append(modes, owned(moded(aFile(fmt.Sprintf("f%o", m), "x"), m), 12, 34),
			moded(aDir(fmt.Sprintf("d%o", m), 0), m))
	}
	add("modes", layers{modes}, nil)
	var times []entry
	for i, when := range []time.Time{
		time.Unix(0, 0), time.Unix(0, 1), time.Unix(-1, 0), time.Unix(-86400*365, 500_000_000), time.Unix(1<<31, 0),
		time.Unix(1<<33, 999_999_999),
		time.Unix(1_700_000_000, 1), time.Unix(-(1 << 31), 0),
	} {
		times = append(times, timed(aFile(fmt.Sprintf("f%d", i), "x"), when), timed(aDir(fmt.Sprintf("d%d", i), 0o755), when),
			timed(aSymlink(fmt.Sprintf("l%d", i), "f0"), when))
	}
	add("times", layers{times}, nil)
	var owners []entry
	for i, id := range []int{0, 1, 65534, 65535, 65536, 1<<21 - 1, 1 << 21, 1<<31 - 1, 1 << 31, 1<<32 - 2} {
		owners = append(owners, owned(aFile(fmt.Sprintf("f%d", i), "x"), id, 1),
			owned(aDir(fmt.Sprintf("d%d", i), 0o755), 1, id), owned(aSymlink(fmt.Sprintf("l%d", i), "f0"), id, id))
	}
	add("owners", layers{owners}, nil)
	add("named owners",
		layers{
			{named(owned(aFile("f", "x"), 1, 2), "daemon", "games"), named(owned(aFile("g", "x"), 0, 0), "nobody", "nogroup")}},
		nil)
	compareAll(t, cases)
}

func named(e entry, user, group string) entry { e.Uname, e.Gname = user, group; return e }

// capability is a security.capability value: cap_net_bind_service, permitted and effective.
func capability(version uint32, rootID ...uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, version<<24|1)
	for _, word := range append([]uint32{1 << 10, 0, 0, 0}, rootID...) {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return string(b)
}

// acl is a system.posix_acl_* value: owner, user 7, group, mask, others.
func acl() string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{0x01, 6, 1<<32 - 1}, {0x02, 4, 7}, {0x04, 4, 1<<32 - 1}, {0x10, 6, 1<<32 - 1},
		{0x20, 4, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return string(b)
}

func TestCompareXattrs(t *testing.T) {
	var cases []comparison
	add := addTo(t, &cases)
	add("user attributes",
		layers{
			{
				xattr(aFile("f", "x"), "user.a", "1", "user.b.c", "\xff\x01=\n", "user.empty", "", "user.long",
					strings.Repeat("v", 1000)), xattr(aDir("d", 0o755), "user.d", "dir")}}, nil,
		`"f": xattrs [user.a="1" user.b.c="\xff\x01=\n" user.empty=""`, "umoci loses an attribute without a value")
	add("capabilities",
		layers{
			{xattr(moded(owned(aFile("v2", "x"), 1, 1), 0o755), "security.capability", capability(2)),
				xattr(aFile("v3", "x"), "security.capability", capability(3, 1000))}}, nil)
	add("capabilities of a file that is linked to above",
		layers{{xattr(aFile("f", "x"), "security.capability", capability(2), "user.a", "1")}, {aLink("h", "f")}}, nil)
	add("access control lists",
		layers{
			{xattr(moded(aFile("f", "x"), 0o664), "system.posix_acl_access", acl()),
				xattr(aDir("d", 0o775), "system.posix_acl_default", acl())}}, nil)
	add("files below a default list",
		layers{{xattr(aDir("d", 0o775), "system.posix_acl_default", acl()), aFile("d/f", "x"), moded(aDir("d/s", 0), 0o700),
			aFile("d/s/g", "x")}}, nil)
	add("a default list below",
		layers{{xattr(aDir("d", 0o775), "system.posix_acl_default", acl())}, {aFile("d/f", "x"), aDir("d/s", 0o700)}}, nil)
	add("a default list and a file copied up below it",
		layers{{xattr(aDir("d", 0o775), "system.posix_acl_default", acl()), aFile("d/a", "a")},
			{xattr(aDir("d", 0o775), "system.posix_acl_default", acl()), aLink("h", "d/a")}}, nil)
	add("attributes gone in the upper layer",
		layers{{xattr(aFile("f", "x"), "user.a", "1"), xattr(aDir("d", 0o755), "user.d", "1")},
			{aFile("f", "y"), aDir("d", 0o700)}}, nil)
	add("attributes of an implied directory", layers{{xattr(aDir("d", 0o755), "user.d", "1")}, {aFile("d/f", "x")}}, nil)
	add("trusted attributes",
		layers{{xattr(aFile("f", "x"), "trusted.x", "1"), xattr(aDir("d", 0o755), "trusted.overlay.opaque", "y")}}, nil,
		`"f": xattrs [], and [trusted.x="1"]`, "trusted.* is the host's: with it an image could steer the overlay it is "+
			"part of")
	add("attributes of devices and pipes",
		layers{
			{xattr(aNode("n", tar.TypeChar, 1, 3), "security.x", "1"),
				xattr(aNode("p", tar.TypeFifo, 0, 0), "security.x", "1")}}, nil)
	add("attributes that cannot be kept",
		layers{{xattr(aSymlink("l", "f"), "user.x", "1"), xattr(aNode("n", tar.TypeChar, 1, 3), "user.x", "1")}},
		map[string]string{"l": "symlink f", "n": "char 1:3"}).never = "operation not permitted"
	compareAll(t, cases)
}
func xattr(e entry, kv ...string) entry {
	e.PAXRecords = map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		e.PAXRecords["SCHILY.xattr."+kv[i]] = kv[i+1]
	}
	return e
}
