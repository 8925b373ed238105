package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestQuota sets the limit of a project, changes it and takes it away.
func TestQuota(t *testing.T) {
	disk := projectDisk(t)
	if err := LimitsProjects(disk); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(disk, "c1")
	must(t, os.Mkdir(dir, 0o700))
	if err := SetQuota(dir, Quota{Bytes: 1 << 20}); !errors.Is(err, ErrNoQuota) {
		t.Errorf("without a project: %v", err)
	}
	must(t, AssignProject(dir))
	want := Quota{Bytes: 1<<20 + 5, Inodes: 100}
	for range 2 {
		must(t, SetQuota(dir, want))
	}
	want.Bytes = 1 << 20 // the kernel counts in KiB
	if got, err := QuotaOf(dir); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	must(t, AssignProject(dir)) // a number with a limit is this directory's still
	if got, err := QuotaOf(dir); got != want || err != nil {
		t.Errorf("assigned again: %+v, %v", got, err)
	}
	for range 2 {
		must(t, ClearQuota(dir))
	}
	if got, err := QuotaOf(dir); !got.Unlimited() || err != nil {
		t.Errorf("cleared: %+v, %v", got, err)
	}
	must(t, SetQuota(dir, Quota{Bytes: 1}))
	if got, err := QuotaOf(dir); got.Bytes != quotaUnit || err != nil {
		t.Errorf("less than a KiB is no limit: %+v, %v", got, err)
	}
}

// TestQuotaThatIsOnlyCounted has an ext4 that counts, because its feature is set, and limits nobody, because the option
// of its mount is not.
func TestQuotaThatIsOnlyCounted(t *testing.T) {
	projectDisk(t) // or this kernel has neither
	disk := projectDiskBy(t, "loop")
	if !CountsProjects(disk) {
		t.Fatal("the disk does not count")
	}
	dir := filepath.Join(disk, "c1")
	must(t, os.Mkdir(dir, 0o700))
	must(t, AssignProject(dir))
	for _, err := range []error{LimitsProjects(disk), SetQuota(dir, Quota{Bytes: 1 << 20})} {
		if !errors.Is(err, ErrNoQuota) || !strings.Contains(err.Error(), "without the option") {
			t.Error(err)
		}
	}
	must(t, ClearQuota(dir))
}

func TestNoQuota(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tmpfs")
	must(t, os.Mkdir(dir, 0o700))
	if os.Geteuid() != 0 || unix.Mount("tmpfs", dir, "tmpfs", 0, "") != nil {
		t.Skip("needs root")
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	for _, err := range []error{LimitsProjects(dir), SetQuota(dir, Quota{Inodes: 1})} {
		if !errors.Is(err, ErrNoQuota) {
			t.Error(err)
		}
	}
	must(t, ClearQuota(dir))
	must(t, ClearQuota(dir+"/nothing"))
	if err := SetQuota(dir+"/nothing", Quota{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestStrayProjects has files that were taken out of their project, and a directory that no longer hands it down.
func TestStrayProjects(t *testing.T) {
	disk := projectDisk(t)
	dir := filepath.Join(disk, "c1")
	must(t, os.MkdirAll(dir, 0o700))
	if _, _, err := Strays(t.Context(), dir, 0); !errors.Is(err, ErrNoQuota) {
		t.Errorf("without a project: %v", err)
	}
	must(t, AssignProject(dir))
	must(t, os.MkdirAll(dir+"/upper/sub", 0o755))
	write(t, dir+"/upper/stays", strings.Repeat("x", 8192))
	write(t, dir+"/upper/goes", strings.Repeat("x", 1<<20))
	must(t, os.Link(dir+"/upper/goes", dir+"/upper/sub/again"))
	must(t, os.Symlink("goes", dir+"/upper/link"))
	must(t, unix.Mkfifo(dir+"/upper/fifo", 0o600))
	wantStrays := func(what string, least, most, files uint64) {
		t.Helper()
		if b, n, err := Strays(t.Context(), dir, 0); err != nil || n != files || b < least || b > most {
			t.Errorf("%s: %d bytes in %d files, %v", what, b, n, err)
		}
	}
	wantStrays("nobody", 0, 0, 0)
	set := func(path string, a fsxattr) {
		t.Helper()
		f, err := os.Open(path)
		must(t, err)
		must(t, errors.Join(setAttributes(f, a), f.Close()))
	}
	set(dir+"/upper/goes", fsxattr{projid: 77})
	syncDisk(t, disk)
	wantStrays("a file", 1<<20, 1<<20+8192, 1)
	f, err := openForQuota(dir + "/upper/sub")
	must(t, err)
	a, err := attributes(f)
	must(t, errors.Join(err, f.Close()))
	set(dir+"/upper/sub", fsxattr{projid: a.projid})
	write(t, dir+"/upper/sub/more", "1")
	syncDisk(t, disk)
	wantStrays("and one that was made in a directory", 1<<20, 1<<20+16384, 2)
	set(dir+"/upper", fsxattr{})
	wantStrays("and the root", 1<<20, 1<<20+32768, 3)
}
