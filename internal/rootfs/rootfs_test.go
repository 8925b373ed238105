package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// needRoot also checks that the test leaves no mount behind.
func needRoot(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		table, err := mountTable()
		if err != nil {
			t.Error(err)
		}
		for _, e := range table {
			if strings.HasPrefix(e.point, dir) {
				t.Errorf("a mount is left at %s", e.point)
				_ = unix.Unmount(e.point, unix.MNT_DETACH)
			}
		}
	})
	return dir
}

// layers makes n of them, the topmost first, each with a file of its own and one that all have.
func layers(t *testing.T, dir string, n int) []string {
	t.Helper()
	var out []string
	for i := range n {
		l := filepath.Join(dir, fmt.Sprintf("%064d", i), "with:odd,name\\")
		must(t, os.MkdirAll(l, 0o755))
		write(t, filepath.Join(l, fmt.Sprint("own", i)), fmt.Sprint(i))
		write(t, filepath.Join(l, "all"), fmt.Sprint(i))
		out = append(out, l)
	}
	must(t, unix.Chmod(out[0], 0o1751))
	must(t, os.Chown(out[0], 12, 34))
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func TestPrepare(t *testing.T) {
	base := needRoot(t)
	dir, at := filepath.Join(base, "c/dir"), filepath.Join(base, "m/rootfs")
	o := Options{Lower: layers(t, base, 3)}
	for range 2 { // the second time over what is there
		must(t, Prepare(dir, at, o))
	}
	if got := content(t, at+"/all") + content(t, at+"/own2"); got != "02" {
		t.Errorf("the layers are not as stacked: %q", got)
	}
	var st unix.Stat_t
	must(t, unix.Stat(at, &st))
	if st.Mode&0o7777 != 0o1751 || st.Uid != 12 || st.Gid != 34 {
		t.Errorf("the root is %o of %d:%d, not as its top layer", st.Mode, st.Uid, st.Gid)
	}
	write(t, at+"/new", "x")
	if content(t, dir+"/upper/new") != "x" || content(t, o.Lower[0]+"/new") == "x" {
		t.Error("what is written does not go to the upper directory alone")
	}
	for range 2 {
		must(t, Unmount(at))
	}
	must(t, Prepare(dir, at, o)) // as after a reboot
	if content(t, at+"/new") != "x" {
		t.Error("a root mounted again lost what was written")
	}
	if err := Remove(filepath.Dir(at)); !errors.Is(err, ErrMounted) {
		t.Errorf("removing a mounted root: %v", err)
	}
	if content(t, at+"/new") != "x" {
		t.Error("a removal went across a mount")
	}
	must(t, Unmount(at))
	for range 2 {
		must(t, Remove(dir))
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestManyLayers(t *testing.T) {
	base := needRoot(t)
	o := Options{Lower: layers(t, base, 300)} // the names alone are 30 kB
	for name, mount := range map[string]func(string, string, Options) error{"new": mountNew, "old": mountOldAnywhere} {
		if name == "new" && !oneByOne() {
			continue
		}
		dir, at := filepath.Join(base, name), filepath.Join(base, name+"-root")
		must(t, makeDirs(dir, o))
		must(t, os.Mkdir(at, 0o755))
		if err := mount(dir, at, o); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if content(t, at+"/all") != "0" || content(t, at+"/own299") != "299" {
			t.Errorf("%s: the layers are not all there", name)
		}
		write(t, at+"/own299", "changed")
		must(t, Unmount(at))
		entries, _ := os.ReadDir(dir)
		if len(entries) != 2 {
			t.Errorf("%s: %v is left beside upper and work", name, entries)
		}
	}
}

func TestPrepareReadOnly(t *testing.T) {
	base := needRoot(t)
	for n, mount := range map[int]func(string, string, Options) error{1: Prepare, 2: Prepare, 3: mountOldAnywhere} {
		dir, at := filepath.Join(base, fmt.Sprint("d", n)), filepath.Join(base, fmt.Sprint("m", n))
		o := Options{Lower: layers(t, filepath.Join(base, fmt.Sprint(n)), n), ReadOnly: true}
		must(t, os.MkdirAll(at, 0o755))
		must(t, os.MkdirAll(dir, 0o755))
		must(t, mount(dir, at, o))
		if content(t, at+"/all") != "0" {
			t.Errorf("%d layers: not there", n)
		}
		if err := os.WriteFile(at+"/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%d layers: writing gives %v", n, err)
		}
		must(t, Unmount(at))
	}
	at := filepath.Join(base, "old")
	must(t, os.Mkdir(at, 0o755))
	must(t, bindOld(layers(t, filepath.Join(base, "o"), 1)[0], at))
	if err := os.WriteFile(at+"/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("old bind: writing gives %v", err)
	}
	must(t, Unmount(at))
}

func TestPrepareRefuses(t *testing.T) {
	base := needRoot(t)
	for want, lower := range map[string][]string{
		"has no layers":      nil,
		"must be absolute":   {"relative"},
		"/none/of/this":      {"/none/of/this"},
		"overlay lowerdir+=": {base, "/none/of/this"},
	} {
		dir, at := filepath.Join(base, "d"), filepath.Join(base, "m")
		err := Prepare(dir, at, Options{Lower: lower})
		if err == nil || !strings.Contains(err.Error(), want) && oneByOne() {
			t.Errorf("%v: %v, want %q", lower, err, want)
		}
		if lower == nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("without layers: %v is no error of the request", err)
		}
		must(t, Unmount(at))
		must(t, Remove(dir))
	}
	many := make([]string, MaxLayers+1)
	for i := range many {
		many[i] = filepath.Join(base, "l", fmt.Sprint(i))
		must(t, os.MkdirAll(many[i], 0o755))
	}
	for range 2 {
		if err := Prepare(base+"/d", base+"/m", Options{Lower: many}); err == nil {
			t.Error("too many layers were mounted")
		} else if oneByOne() && !strings.Contains(err.Error(), "500") {
			t.Errorf("too many layers: %v does not say what the kernel said", err)
		}
	}
	if err := mountOldAnywhere(base, base+"/m", Options{Lower: many}); err == nil ||
		!strings.Contains(err.Error(), "at most 500") {
		t.Errorf("too many layers: %v", err)
	}
}

func TestUnmountBusy(t *testing.T) {
	base := needRoot(t)
	at := base + "/shm"
	must(t, MakeShm(at, 1<<20, 0, 0, ""))
	open, err := os.Create(at + "/open")
	must(t, err)
	must(t, Unmount(at))
	if _, err := open.WriteString("still there"); err != nil {
		t.Errorf("a user of a detached mount: %v", err)
	}
	must(t, open.Close())
	if mounted, err := isMount(at); mounted || err != nil {
		t.Errorf("mounted %v, %v", mounted, err)
	}
	for range 3 { // stacked by somebody
		must(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	}
	must(t, Unmount(at))
	must(t, Unmount(base+"/none/none"))
}

func TestTmpfs(t *testing.T) {
	base := needRoot(t)
	at := base + "/shm"
	for range 2 {
		must(t, MakeShm(at, 1<<20, 0, 0, ""))
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(at, &st))
	if st.Blocks*uint64(st.Bsize) != 1<<20 || st.Flags&unix.ST_NOEXEC == 0 || st.Flags&unix.ST_NODEV == 0 ||
		st.Flags&unix.ST_NOSUID == 0 {
		t.Errorf("%d bytes, flags %x", st.Blocks*uint64(st.Bsize), st.Flags)
	}
	info, err := os.Stat(at)
	must(t, err)
	if info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("mode %v", info.Mode())
	}
	write(t, at+"/f", "x")
	for range 2 {
		must(t, UnmakeTmpfs(at))
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

func TestSweep(t *testing.T) {
	base := needRoot(t)
	must(t, Sweep(base+"/none", nil))
	for _, id := range []string{"live", "dead", "dead too"} {
		must(t, os.MkdirAll(filepath.Join(base, id, "c"), 0o755))
		must(t, MakeShm(filepath.Join(base, id, "shm"), 0, 0, 0, ""))
		must(t, MakeShm(filepath.Join(base, id, "shm/inner"), 0, 0, 0, ""))
		write(t, filepath.Join(base, id, "ns"), "")
		must(t, unix.Mount("/proc/self/ns/uts", filepath.Join(base, id, "ns"), "", unix.MS_BIND, ""))
	}
	write(t, base+"/stray", "")
	must(t, os.Symlink("live", base+"/link"))
	for range 2 {
		must(t, Sweep(base, func(name string) bool { return name == "live" }))
	}
	left, err := os.ReadDir(base)
	must(t, err)
	if len(left) != 1 || left[0].Name() != "live" {
		t.Errorf("left: %v", left)
	}
	if mounted, _ := isMount(base + "/live/shm/inner"); !mounted {
		t.Error("a live mount was taken away")
	}
	must(t, Sweep(base, func(string) bool { return false }))
}

// TestImpliedRoot mounts layers of which the upper ones say nothing about the root.
func TestImpliedRoot(t *testing.T) {
	base := needRoot(t)
	for _, readOnly := range []bool{false, true} {
		for n := range 3 {
			dir := filepath.Join(base, fmt.Sprint(readOnly, n))
			at, lower := filepath.Join(dir, "m"), layers(t, dir, 3)
			must(t, os.Chown(lower[n], 100+n, 200))
			must(t, unix.Chmod(lower[n], 0o710))
			for _, l := range lower[:n] {
				must(t, unix.Setxattr(l, ImpliedRoot, []byte("y"), 0))
			}
			must(t, Prepare(filepath.Join(dir, "d"), at, Options{Lower: lower, ReadOnly: readOnly}))
			var st unix.Stat_t
			must(t, unix.Stat(at, &st))
			if st.Mode&0o7777 != 0o710 || int(st.Uid) != 100+n || st.Gid != 200 {
				t.Errorf("read-only %t, layer %d: the root is %o %d:%d", readOnly, n, st.Mode&0o7777, st.Uid, st.Gid)
			}
			if err := os.WriteFile(at+"/x", nil, 0o644); errors.Is(err, unix.EROFS) != readOnly {
				t.Errorf("read-only %t: writing gives %v", readOnly, err)
			}
			if content(t, at+"/all") != "0" {
				t.Errorf("layer %d: its content is not the topmost", n)
			}
			must(t, Unmount(at))
			must(t, Remove(filepath.Join(dir, "d")))
		}
	}
}

// TestImpliedRootOfManyLayers mounts as many layers as the kernel takes, which leaves no place for a root of their own.
func TestImpliedRootOfManyLayers(t *testing.T) {
	base := needRoot(t)
	lower := layers(t, base, MaxLayers)
	must(t, unix.Setxattr(lower[0], ImpliedRoot, []byte("y"), 0))
	at := filepath.Join(base, "m")
	for _, readOnly := range []bool{false, true} {
		must(t, Prepare(filepath.Join(base, "d"), at, Options{Lower: lower, ReadOnly: readOnly}))
		if content(t, at+"/all") != "0" || content(t, fmt.Sprint(at, "/own", MaxLayers-1)) != fmt.Sprint(MaxLayers-1) {
			t.Errorf("read-only %t: not all layers are there", readOnly)
		}
		must(t, Unmount(at))
	}
}

func mountOldAnywhere(dir, mountpoint string, o Options) error {
	return mountOld(dir, mountpoint, o, inDir)
}

// TestRemoveBesideAWriter removes a directory into which somebody writes a few more files, each as soon as the last one
// is gone.
func TestRemoveBesideAWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	late := filepath.Join(dir, "late")
	for range 500 {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(late, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		wrote, removed := make(chan struct{}), atomic.Bool{}
		go func() {
			defer close(wrote)
			for range newcomers - 1 {
				for unix.Access(late, unix.F_OK) == nil {
					if removed.Load() {
						return
					}
				}
				if os.WriteFile(late, nil, 0o600) != nil {
					return // the directory is gone
				}
			}
		}()
		err := Remove(dir)
		removed.Store(true)
		<-wrote
		if err != nil {
			t.Fatal(err)
		}
	}
}
