package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var then = time.Unix(1_600_000_000, 123456789)

// plant makes a tree with one of each kind.
func plant(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.Mkdir(at("d"), 0o755),
		os.WriteFile(at("d/f"), []byte("content"), 0o644),
		os.Link(at("d/f"), at("g")),
		os.Symlink("d/f", at("l")),
		unix.Mknod(at("null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		unix.Mkfifo(at("pipe"), 0o600),
		unix.Lsetxattr(at("d/f"), "user.x", []byte{0, 1}, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"d/f", "l", "null", "pipe", "d", "."} {
		ts, _ := unix.TimeToTimespec(then)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, at(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t *testing.T, root string) Tree {
	t.Helper()
	tree, err := ReadTree(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestSameTrees(t *testing.T) {
	if d := DiffTrees(read(t, plant(t)), read(t, plant(t))); len(d) > 0 {
		t.Errorf("two trees made alike differ:\n%s", strings.Join(d, "\n"))
	}
}

// TestEveryDifferenceIsSeen changes one thing at a time.
func TestEveryDifferenceIsSeen(t *testing.T) {
	before := read(t, plant(t))
	changes := map[string]func(at func(string) string) error{
		`"d/f": mode`:    func(at func(string) string) error { return unix.Chmod(at("d/f"), 0o4644) },
		`"d": owner`:     func(at func(string) string) error { return os.Lchown(at("d"), 1, 0) },
		`"null": device`: func(at func(string) string) error { return remake(at("null"), unix.S_IFCHR, 1, 5) },
		`"null": type`:   func(at func(string) string) error { return remake(at("null"), unix.S_IFBLK, 1, 3) },
		`"l": target`:    func(at func(string) string) error { return relink(at("l"), "./d/f") },
		`"g": xattrs`: func(at func(string) string) error {
			return unix.Lsetxattr(at("g"), "user.x", []byte{0, 2}, 0)
		},
		`"g": content`:         func(at func(string) string) error { return os.WriteFile(at("g"), []byte("CONTENT"), 0o644) },
		`"g": size`:            func(at func(string) string) error { return os.Truncate(at("g"), 3) },
		`"pipe": mtime`:        func(at func(string) string) error { return os.Chtimes(at("pipe"), then, then.Add(1)) },
		`"g": one file with`:   func(at func(string) string) error { return unlinked(at("g")) },
		`"new": nothing, and `: func(at func(string) string) error { return os.Mkdir(at("new"), 0o755) },
		`"pipe": fifo, and no`: func(at func(string) string) error { return os.Remove(at("pipe")) },
	}
	for want, change := range changes {
		root := plant(t)
		if err := change(func(name string) string { return filepath.Join(root, name) }); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(DiffTrees(before, read(t, root)), "\n"); !strings.Contains(got, want) {
			t.Errorf("wanted %s to be seen, got:\n%s", want, got)
		}
	}
}

func remake(p string, kind, major, minor uint32) error {
	if err := os.Remove(p); err != nil {
		return err
	}
	return unix.Mknod(p, kind|0o600, int(unix.Mkdev(major, minor)))
}

func relink(p, target string) error {
	if err := os.Remove(p); err != nil {
		return err
	}
	return os.Symlink(target, p)
}

// unlinked makes a name a file of its own, with the content it had.
func unlinked(p string) error {
	if err := os.Remove(p); err != nil {
		return err
	}
	return os.WriteFile(p, []byte("content"), 0o644)
}
