package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/volume"
)

// projectDisk is an ext4 that keeps account of projects; a test without one is skipped where this kernel has none.
func projectDisk(t *testing.T) string { return projectDiskBy(t, "loop,prjquota") }

// projectDiskBy is the same, mounted with these options.
func projectDiskBy(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", "64M", image},
		{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", image},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if out, err := exec.Command("mount", "-o", options, image, dir).CombinedOutput(); err != nil {
		t.Skipf("this kernel has no quotas for ext4 (CONFIG_QFMT_V2): %s", out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestProjects(t *testing.T) {
	disk := projectDisk(t)
	if !CountsProjects(disk) {
		t.Fatal("the disk does not count")
	}
	lower, dir, mountpoint := filepath.Join(disk, "lower"), filepath.Join(disk, "c1"), filepath.Join(disk, "m")
	other := filepath.Join(disk, "c2")
	for _, d := range []string{lower, dir, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(lower, "big"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(AssignProject(dir), AssignProject(other)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prepare(dir, mountpoint, Options{Lower: []string{lower}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Unmount(mountpoint); err != nil {
			t.Error(err)
		}
	}()
	emptyBytes, emptyInodes, err := ProjectUsage(dir)
	if err != nil || emptyInodes < 3 {
		t.Fatalf("%d, %d, %v", emptyBytes, emptyInodes, err)
	}
	// A new file, one copied up by a change of its mode (which overlay makes in work and renames), a tree, a hard link.
	work := `cd "$1"; head -c 3000000 /dev/zero > new; chmod 640 big; mkdir -p a/b; ln new a/b/link; mv big a/b/big`
	if out, err := exec.Command("sh", "-ec", work, "sh", mountpoint).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	syncDisk(t, disk)
	bytes, inodes, err := ProjectUsage(dir)
	if grown := bytes - emptyBytes; err != nil || grown < 4000000 || grown > 4400000 || inodes-emptyInodes < 4 {
		t.Errorf("%d bytes and %d inodes more, %v", grown, inodes-emptyInodes, err)
	}
	walked, _, err := Usage(t.Context(), filepath.Join(dir, "upper"), 0)
	if err != nil || walked > bytes || bytes-walked > 64<<10 {
		t.Errorf("a walk says %d, %v; the project %d", walked, err, bytes)
	}
	if b, n, err := ProjectUsage(other); err != nil || n != 1 || b > 8192 {
		t.Errorf("the other: %d bytes, %d inodes, %v", b, n, err)
	}
	if _, _, err := ProjectUsage(lower); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no project: %v", err)
	}
}

// syncDisk syncs one file system: others' tests are about what nobody synced.
func syncDisk(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A number that somebody uses, such as a kubelet for a volume, is passed over.
func TestProjectIsNobodyElses(t *testing.T) {
	disk := projectDisk(t)
	taken, dir := filepath.Join(disk, "somebody"), filepath.Join(disk, "c1")
	for _, d := range []string{taken, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := openForQuota(taken)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := setAttributes(f, fsxattr{projid: projectOf("c1", 0), xflags: xflagInherit}); err != nil {
		t.Fatal(err)
	}
	if err := AssignProject(dir); err != nil {
		t.Fatal(err)
	}
	g, err := openForQuota(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if a, err := attributes(g); err != nil || a.projid != projectOf("c1", 1) {
		t.Errorf("project %#x, %v", a.projid, err)
	}
}

func TestNoProjects(t *testing.T) {
	dir := t.TempDir()
	if CountsProjects(dir) {
		t.Skip("the file system of temporary files keeps account of projects")
	}
	if _, _, err := ProjectUsage(dir); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTTY) &&
		!errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
	if _, _, err := ProjectUsage(dir + "/nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := AssignProject(dir); err == nil {
		t.Error("a project was assigned where nobody counts")
	}
}

func TestProjectNumbers(t *testing.T) {
	seen := map[uint32]bool{}
	for try := range 100 {
		id := projectOf("c1", try)
		if !(fsxattr{projid: id}).ours() || seen[id] {
			t.Errorf("try %d: %#x", try, id)
		}
		seen[id] = true
	}
	for _, id := range []uint32{0, 1, 1048577, 0xa0000000, 0xffffffff} {
		if (fsxattr{projid: id}).ours() {
			t.Errorf("%#x is not ours", id)
		}
	}
}

// TestRemoveWhatIsOfAnotherProject has a container give directories that are nested deep another project: the kernel
// lets nothing of another one be moved to where a project is handed down.
func TestRemoveWhatIsOfAnotherProject(t *testing.T) {
	disk := t.TempDir()
	volume.Mounted(t, disk, volume.XFS, 0)
	dir := filepath.Join(disk, "c1")
	must(t, os.Mkdir(dir, 0o755))
	f, err := openForQuota(dir)
	must(t, err)
	must(t, setAttributes(f, fsxattr{projid: firstProject, xflags: xflagInherit}))
	must(t, f.Close())
	deep := dir
	for range deepest + 20 {
		deep = filepath.Join(deep, "d")
		must(t, os.Mkdir(deep, 0o755))
	}
	for range 40 {
		f, err := openForQuota(deep)
		must(t, err)
		must(t, setAttributes(f, fsxattr{projid: 77}))
		must(t, f.Close())
		deep = filepath.Dir(deep)
	}
	must(t, Remove(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}
