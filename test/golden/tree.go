package golden

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Node is one name in a tree.
type Node struct {
	Type     string // file, directory, symlink, char, block, fifo or socket
	Mode     uint32 // permissions with setuid, setgid and sticky
	UID, GID uint32
	Mtime    int64 // nanoseconds since 1970
	Size     int64 // of a file
	Hash     string
	Target   string // of a symlink
	Device   string // major:minor
	Xattrs   string // names and values, sorted
	Same     string // the first name, by order, of the file that this is another name of
}

// Tree describes a tree of files completely: its nodes by their path relative to the root, which is ".". Tests prove by
// it that two tools made the same of one image.
//
// What counts is what a process in the tree could see: type, mode, owner, modification time to the nanosecond, extended
// attributes, content, the target of a symlink, device numbers, and which names are one file. Where a file has holes,
// how large a directory is and what inode numbers there are does not count.
type Tree map[string]Node

// ReadTree describes everything below root.
func ReadTree(root string) (Tree, error) {
	t, names := Tree{}, map[[2]uint64][]string{}
	err := filepath.WalkDir(root, func(full string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(full, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: full, Err: err}
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			id := [2]uint64{st.Dev, st.Ino}
			names[id] = append(names[id], rel)
		}
		t[rel], err = describe(full, &st)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("describe the tree %s: %w", root, err)
	}
	t.join(names)
	return t, nil
}

// join notes which names are one file. The walk goes in order, so the first is the same in all trees that are alike. A
// file may have more names than can be seen: those that an upper layer covers.
func (t Tree) join(names map[[2]uint64][]string) {
	for _, group := range names {
		for _, name := range group {
			n := t[name]
			if len(group) > 1 {
				n.Same = group[0]
			}
			t[name] = n
		}
	}
}

var kinds = map[uint32]string{
	unix.S_IFREG: "file", unix.S_IFDIR: "directory", unix.S_IFLNK: "symlink", unix.S_IFCHR: "char", unix.S_IFBLK: "block",
	unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket",
}

func describe(full string, st *unix.Stat_t) (Node, error) {
	n := Node{Type: kinds[st.Mode&unix.S_IFMT], Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano()}
	var err error
	switch n.Type {
	case "file":
		n.Size = st.Size
		n.Hash, err = hash(full)
	case "symlink":
		n.Target, err = os.Readlink(full)
	case "char", "block":
		n.Device = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	if err != nil {
		return n, err
	}
	n.Xattrs, err = xattrs(full)
	return n, err
}

func hash(full string) (string, error) {
	f, err := os.OpenFile(full, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func xattrs(full string) (string, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(full, list)
	if errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", &os.PathError{Op: "list attributes of", Path: full, Err: err}
	}
	var out []string
	for _, name := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if name == "" || name == "security.selinux" { // the host's policy gives that one
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(full, name, value)
		if err != nil {
			return "", &os.PathError{Op: "read attribute " + name + " of", Path: full, Err: err}
		}
		out = append(out, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	sort.Strings(out)
	return strings.Join(out, " "), nil
}

// DiffTrees describes how a differs from b, with a line for each difference, by path. It returns none if they are the
// same.
func DiffTrees(a, b Tree) []string {
	paths := map[string]bool{}
	for p := range a {
		paths[p] = true
	}
	for p := range b {
		paths[p] = true
	}
	var out []string
	for p := range paths {
		left, inA := a[p]
		right, inB := b[p]
		switch {
		case !inB:
			out = append(out, fmt.Sprintf("%q: %s, and nothing", p, left.Type))
		case !inA:
			out = append(out, fmt.Sprintf("%q: nothing, and %s", p, right.Type))
		default:
			out = append(out, diffNode(p, left, right)...)
		}
	}
	sort.Strings(out)
	return out
}

func diffNode(p string, a, b Node) []string {
	left, right := a.fields(), b.fields()
	var out []string
	for i, f := range left {
		if f.value != right[i].value {
			out = append(out, fmt.Sprintf("%q: %s %s, and %s", p, f.name, f.value, right[i].value))
		}
	}
	return out
}

type field struct{ name, value string }

func (n Node) fields() []field {
	return []field{
		{"type", n.Type}, {"mode", fmt.Sprintf("%#o", n.Mode)}, {"owner", fmt.Sprintf("%d:%d", n.UID, n.GID)},
		{"mtime", time.Unix(0, n.Mtime).UTC().Format(time.RFC3339Nano)}, {"size", fmt.Sprint(n.Size)}, {"content", n.Hash},
		{"target", fmt.Sprintf("%q", n.Target)}, {"device", n.Device}, {"xattrs", "[" + n.Xattrs + "]"},
		{"one file with", fmt.Sprintf("%q", n.Same)},
	}
}
