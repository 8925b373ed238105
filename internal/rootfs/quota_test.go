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
