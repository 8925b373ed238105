package layer

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// modes is a layer of all that is made, in directories that give on what the kernel lets them: each mode, with each
// owner.
func modes() (items []item) {
	for _, in := range []struct {
		name string
		mode int64
		gid  int
	}{
		{"plain", 0o755, 0}, {"group", 0o775, 50}, {"setgid", 0o2775, 50}, {"setgid-root", 0o2755, 0}, {"sticky", 0o1777, 0},
	} {
		d := dir(in.name, in.mode)
		d.Gid = in.gid
		items = append(items, d)
		for _, mode := range []int64{0, 0o444, 0o666, 0o1755, 0o2755, 0o4711, 0o7777} {
			for _, owner := range [][2]int{{0, 0}, {0, 50}, {50, 0}} {
				items = append(items, made(in.name, mode, owner)...)
			}
		}
		items = append(items, file(in.name+"/implied/deep/f", "x"))
	}
	return items
}

func made(in string, mode int64, owner [2]int) (items []item) {
	for kind, name := range map[byte]string{
		tar.TypeReg: "file", tar.TypeDir: "dir", tar.TypeFifo: "fifo", tar.TypeChar: "char", tar.TypeSymlink: "link",
	} {
		i := item{Header: tar.Header{Typeflag: kind, Mode: mode, Uid: owner[0], Gid: owner[1], Devmajor: 1, Devminor: 3}}
		if kind == tar.TypeReg {
			i.body, i.Size = "text", 4
		}
		if kind == tar.TypeSymlink {
			i.Linkname = "nowhere"
		}
		i.Name = filepath.Join(in, fmt.Sprintf("%s-%#o-%d-%d", name, mode, owner[0], owner[1]))
		items = append(items, i)
	}
	slices.SortFunc(items, func(a, b item) int { return int(a.Typeflag) - int(b.Typeflag) })
	return items
}

// TestDefaults unpacks with each umask, and below a directory that gives on a group and an access control list:
// everything has the owner and the mode of its entry, which is what the manifest says.
func TestDefaults(t *testing.T) {
	for _, umask := range []int{0, 0o027, 0o777} {
		for name, prepare := range map[string]func(*testing.T, string){
			"plain": func(*testing.T, string) {}, "setgid": setgidStore, "default list": listedStore,
		} {
			t.Run(fmt.Sprintf("%#o %s", umask, name), func(t *testing.T) {
				store := t.TempDir()
				prepare(t, store)
				d := filepath.Join(store, "layer")
				if err := unix.Mkdir(d, 0o700); err != nil {
					t.Fatal(err)
				}
				old := unix.Umask(umask)
				res, err := Unpack(t.Context(), bytes.NewReader(archive(t, modes()...)), d, Limits{})
				unix.Umask(old)
				if err != nil || res.Unsupported > 0 {
					t.Fatal(err, res)
				}
				proven(t, d)
				unlisted(t, d)
			})
		}
	}
}

func setgidStore(t *testing.T, store string) {
	if err := errors.Join(unix.Chown(store, 0, 50), unix.Chmod(store, 0o2755)); err != nil {
		t.Fatal(err)
	}
}

// listedStore gives a directory a list that takes rights from what is made in it, and gives others to user 1000.
func listedStore(t *testing.T, store string) {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, ^uint32(0)}, {2, 7, 1000}, {4, 5, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	err := unix.Setxattr(store, defaultACL, list, 0)
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("this file system has no access control lists")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unlisted wants no access control list in the layer.
func unlisted(t *testing.T, d string) {
	t.Helper()
	for _, p := range []string{"", "plain", "plain/implied", "plain/implied/deep", "plain/implied/deep/f", "setgid"} {
		for _, list := range []string{accessACL, defaultACL} {
			_, err := unix.Lgetxattr(filepath.Join(d, FS, p), list, nil)
			if !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
				t.Errorf("%q has a %s: %v", p, list, err)
			}
		}
	}
}
