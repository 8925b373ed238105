package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/limit"
)

func TestReadFile(t *testing.T) {
	base := needRoot(t)
	root := base + "/root"
	must(t, os.MkdirAll(root+"/etc", 0o755))
	write(t, base+"/secret", "host")
	write(t, root+"/etc/passwd", "inside")
	write(t, root+"/secret", "of the root")
	for link, to := range map[string]string{
		"abs": "/etc/passwd", "up": "../../../../secret", "abs-host": base + "/secret", "magic": "/proc/self/root" + base +
			"/secret",
		"loop": "loop", "dir": "etc", "null": "/dev/nul",
	} {
		must(t, os.Symlink(to, root+"/"+link))
	}
	must(t, os.Mkdir(root+"/dev", 0o755))
	must(t, unix.Mknod(root+"/dev/nul", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mkfifo(root+"/fifo", 0o666))
	for path, want := range map[string]string{
		"etc/passwd": "inside", "/etc/passwd": "inside", "abs": "inside", "up": "of the root", "../../secret": "of the root",
		"dir/passwd": "inside",
	} {
		if got, err := ReadFile(root, path, limit.AccountFile.At(100)); string(got) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
	for path, want := range map[string]error{
		"none": fs.ErrNotExist, "abs-host": fs.ErrNotExist, "magic": fs.ErrNotExist, "loop": unix.ELOOP,
		"etc": ErrNotRegular, "fifo": ErrNotRegular, "null": ErrNotRegular, "/": ErrNotRegular, "etc/passwd/x": unix.ENOTDIR,
	} {
		if got, err := ReadFile(root, path, limit.AccountFile.At(100)); !errors.Is(err, want) {
			t.Errorf("%s: %q, %v, want %v", path, got, err, want)
		}
	}
	if _, err := ReadFile(root, "etc/passwd", limit.AccountFile.At(5)); !fail.As[*limit.Error](err) {
		t.Errorf("a file of 6 with a bound of 5: %v", err)
	}
	if got, err := ReadFile(root, "etc/passwd", limit.AccountFile.At(6)); string(got) != "inside" || err != nil {
		t.Errorf("a file of 6 with a bound of 6: %q, %v", got, err)
	}
	if got, err := Resolve(root, "dir/../up"); got != root+"/secret" || err != nil {
		t.Errorf("resolve: %q, %v", got, err)
	}
}

func TestMkdirAll(t *testing.T) {
	base := needRoot(t)
	root := base + "/root"
	must(t, os.MkdirAll(root+"/real", 0o755))
	must(t, os.Symlink("/real", root+"/link"))
	must(t, os.Symlink("/../../nowhere", root+"/dangling"))
	write(t, root+"/file", "")
	for range 2 {
		must(t, MkdirAll(t.Context(), root, "/link/a/../b/c", 0o755))
		must(t, MkdirAll(t.Context(), root, "../../up/d", 0o755))
	}
	for _, want := range []string{"/real/b/c", "/up/d"} {
		if info, err := os.Stat(root + want); err != nil || !info.IsDir() {
			t.Errorf("%s: %v, %v", want, info, err)
		}
	}
	for _, bad := range []string{"/dangling/x", "/file/x"} {
		if err := MkdirAll(t.Context(), root, bad, 0o755); err == nil {
			t.Errorf("%s was made", bad)
		}
	}
	left, err := os.ReadDir(base)
	must(t, err)
	if len(left) != 1 {
		t.Errorf("outside of the root there is now %v", left)
	}
}

// TestPlace follows links as MkdirAll and an OCI runtime do, and further: also those that lead nowhere.
func TestPlace(t *testing.T) {
	base := needRoot(t)
	root := base + "/root"
	must(t, os.MkdirAll(root+"/real/sub", 0o755))
	write(t, root+"/real/file", "")
	for link, to := range map[string]string{
		"link": "/real", "file": "real/file", "dangling": "/data/app", "real/up": "../other", "out": "../../../x",
		"chain": "dangling/y", "loop": "loop", "to-loop": "loop/x", "host": base + "/none",
	} {
		must(t, os.Symlink(to, root+"/"+link))
	}
	for p, want := range map[string]string{
		"/": "/", "": "/", "..": "/", "/real/sub": "/real/sub", "link//sub/": "/real/sub", "/link/none/x": "/real/none/x",
		"/none": "/none", "/a/b/../c": "/a/c", "/file": "/real/file", "/link/file": "/real/file",
		"/dangling": "/data/app", "/dangling/x": "/data/app/x", "/link/up": "/other", "/link/up/x": "/other/x",
		"/out/y": "/x/y", "/chain/z": "/data/app/y/z", "/host/x": base + "/none/x",
	} {
		if got, err := Place(root, p); got != want || err != nil {
			t.Errorf("%q: %q, %v, wanted %s", p, got, err, want)
		}
	}
	for p, want := range map[string]error{"/loop": unix.ELOOP, "/to-loop": unix.ELOOP, "/file/x": unix.ENOTDIR} {
		if got, err := Place(root, p); !errors.Is(err, want) {
			t.Errorf("%q: %q, %v, wanted %v", p, got, err, want)
		}
	}
	at := "/none"
	for i := range 50 { // longer than the kernel would follow
		must(t, os.Symlink(at, fmt.Sprint(root, "/l", i)))
		at = fmt.Sprint("/l", i)
	}
	if got, err := Place(root, at); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a chain of 50 links: %q, %v", got, err)
	}
	left, err := os.ReadDir(base)
	must(t, err)
	if len(left) != 1 {
		t.Errorf("outside of the root there is now %v", left)
	}
}

func TestRemoveDeepAndImmutable(t *testing.T) {
	base := needRoot(t)
	dir := base + "/dir"
	must(t, os.Mkdir(dir, 0o755))
	here, err := os.Open(dir)
	must(t, err)
	const depth = 3000 // longer than a path can be
	for i := range depth {
		must(t, unix.Mkdirat(int(here.Fd()), "nested", 0o000))
		if i%500 == 0 {
			must(t, unix.Mknodat(int(here.Fd()), "f", unix.S_IFREG, 0))
		}
		fd, err := unix.Openat(int(here.Fd()), "nested", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, here.Close())
		here = os.NewFile(uintptr(fd), "nested")
	}
	must(t, here.Close())
	for i := range 1000 {
		write(t, fmt.Sprintf("%s/%d", dir, i), "")
	}
	must(t, os.Mkdir(dir+"/stuck", 0o755))
	write(t, dir+"/stuck/file", "")
	for _, p := range []string{"/stuck/file", "/stuck"} {
		setImmutable(t, dir+p)
	}
	must(t, os.Symlink("/etc", dir+"/etc"))
	must(t, Remove(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatalf("a link was followed: %v", err)
	}
	must(t, Remove(base+"/none/none"))
}

func setImmutable(t *testing.T, path string) {
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		t.Logf("not tried with immutable files here: %v", err)
		return
	}
	if err := os.Remove(path); !errors.Is(err, unix.EPERM) {
		t.Errorf("an immutable file could be removed at once: %v", err)
	}
}

func TestRemoveStopsAtMountedFile(t *testing.T) {
	base := needRoot(t)
	must(t, os.Mkdir(base+"/dir", 0o755))
	write(t, base+"/dir/pin", "")
	write(t, base+"/data", "x")
	must(t, unix.Mount(base+"/data", base+"/dir/pin", "", unix.MS_BIND, ""))
	if err := Remove(base + "/dir"); !errors.Is(err, ErrMounted) {
		t.Errorf("%v", err)
	}
	must(t, Unmount(base+"/dir/pin"))
	must(t, Remove(base+"/dir"))
	if content(t, base+"/data") != "x" {
		t.Error("the data behind a mount is gone")
	}
}

func TestUsage(t *testing.T) {
	base := needRoot(t)
	up := base + "/upper"
	must(t, os.MkdirAll(up+"/a/b", 0o755))
	must(t, os.WriteFile(up+"/a/f", make([]byte, 10000), 0o644))
	must(t, os.Link(up+"/a/f", up+"/a/b/again"))
	must(t, os.Truncate(mustCreate(t, up+"/sparse"), 1<<40))
	must(t, os.MkdirAll(up+"/mnt", 0o755))
	must(t, MakeShm(up+"/mnt", 0, 0, 0, ""))
	write(t, up+"/mnt/elsewhere", strings.Repeat("x", 100000))
	bytes, inodes, err := Usage(context.Background(), up, 0)
	must(t, UnmakeTmpfs(up+"/mnt"))
	if err != nil || inodes != 5 || bytes < 10000 || bytes > 40000 {
		t.Errorf("%d bytes, %d inodes, %v; want 5 inodes and about 12288 bytes and the directories'", bytes, inodes, err)
	}
	if _, _, err := Usage(context.Background(), base+"/none", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestUsagePace(t *testing.T) {
	up := t.TempDir()
	for i := range 300 {
		write(t, filepath.Join(up, fmt.Sprint(i)), "")
	}
	start := time.Now()
	if _, inodes, err := Usage(context.Background(), up, 2000); err != nil || inodes != 301 {
		t.Errorf("%d inodes, %v", inodes, err)
	}
	if took := time.Since(start); took < 140*time.Millisecond {
		t.Errorf("300 entries at 2000 a second took %v", took)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, inodes, err := Usage(ctx, up, 200)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrIncomplete) {
		t.Errorf("a walk past its deadline: %v", err)
	}
	if inodes < 100 || inodes > 300 { // 100 entries are looked at before the first pause
		t.Errorf("a walk past its deadline has counted %d inodes", inodes)
	}
}

func mustCreate(t *testing.T, path string) string {
	write(t, path, "")
	return path
}

func TestPropagation(t *testing.T) {
	base := needRoot(t)
	at := base + "/a b"
	must(t, MakeTmpfs(at, Tmpfs{Mode: 0o755}))
	defer func() { must(t, UnmakeTmpfs(at)) }()
	must(t, os.Mkdir(at+"/sub", 0o755))
	must(t, os.Symlink("sub", at+"/link"))
	src, err := Source(at + "/link")
	if err != nil || src != at+"/sub" {
		t.Fatalf("source: %q, %v", src, err)
	}
	if _, err := Source(at + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing source: %v", err)
	}
	for _, c := range []struct {
		flag       uintptr
		both, inTo bool
	}{{unix.MS_PRIVATE, false, false}, {unix.MS_SHARED, true, true}, {unix.MS_SLAVE, false, true}} {
		if c.flag == unix.MS_SLAVE { // a slave needs a master that stays
			must(t, os.Mkdir(base+"/peer", 0o755))
			must(t, unix.Mount(at, base+"/peer", "", unix.MS_BIND, ""))
			defer func() { must(t, Unmount(base+"/peer")) }()
		}
		must(t, unix.Mount("", at, "", c.flag, ""))
		var host HostMounts
		if err := host.CheckPropagation(src, true); (err == nil) != c.both {
			t.Errorf("%x both ways: %v", c.flag, err)
		}
		if err := host.CheckPropagation(src, false); (err == nil) != c.inTo {
			t.Errorf("%x one way: %v", c.flag, err)
		}
	}
}

// endingContext ends at one of the looks at it.
type endingContext struct {
	context.Context
	left int
}

func (c *endingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestMkdirAllEnds makes a path of thousands of directories until its context ends.
func TestMkdirAllEnds(t *testing.T) {
	root := needRoot(t) + "/root"
	must(t, os.Mkdir(root, 0o755))
	const depth, some = 2000, 100
	p := strings.Repeat("/a", depth)
	if err := MkdirAll(&endingContext{t.Context(), some}, root, p, 0o755); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if _, err := Resolve(root, p[:2*some]); err != nil {
		t.Error(err)
	}
	if _, err := Resolve(root, p[:2*some+2]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("more was made after the end: %v", err)
	}
	must(t, MkdirAll(t.Context(), root, p, 0o755))
	if _, err := locate(root, p, unix.O_DIRECTORY); err != nil {
		t.Error(err)
	}
	must(t, Remove(root))
}
