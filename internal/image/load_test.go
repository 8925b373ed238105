package image

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/image/catalog"
	"berth/test/volume"
)

// TestOpenReadOnly opens a store whose file system has turned read-only: what is whole is served, what may not be
// whole is not, and all is well again when the file system is.
func TestOpenReadOnly(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/whole:v1", imageOf(t, gz(t, file("a", "whole"))))
	push(t, host+"/late:v1", imageOf(t, gz(t, file("b", "late"))))
	root := t.TempDir()
	volume.Mounted(t, root, volume.Ext4, 16)
	s := open(t, root, func(c *Config) { c.BootID = "one" })
	whole := pull(t, s, host+"/whole:v1")
	durable(t, s)
	_ = s.Close()
	s = still(t, root, "one")
	late := pull(t, s, host+"/late:v1")
	_ = s.Close()
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s = open(t, root, func(c *Config) { c.BootID = "two" })
	_, release, err := s.Use(host + "/whole:v1")
	if err != nil || content(t, s, whole, "a") != "whole" {
		t.Fatalf("what is whole is not served: %v", err)
	}
	release()
	if _, ok := s.Get(late.ID); ok {
		t.Error("an image is served that may not be whole")
	}
	for _, want := range []string{"is read-only", "cannot be removed", "its record cannot be removed"} {
		if !slices.ContainsFunc(s.Problems(), func(f Finding) bool { return strings.Contains(f.Problem, want) }) {
			t.Errorf("no problem %q among %+v", want, s.Problems())
		}
	}
	_, err = s.Pull(t.Context(), PullRequest{Reference: host + "/late:v1"})
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "look at dmesg") {
		t.Errorf("a pull says %v", err)
	}
	if err := s.Remove(t.Context(), whole.ID); !errors.Is(err, unix.EROFS) {
		t.Errorf("a removal says %v", err)
	}
	if _, ok := s.Get(whole.ID); !ok {
		t.Error("an image that could not be removed is gone")
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	pull(t, s, host+"/late:v1")
	if p := s.Problems(); len(p) != 0 {
		t.Errorf("when it is writable again: %+v", p)
	}
	if err := s.Check(t.Context(), false, func(f Finding) { t.Errorf("check finds %+v", f) }); err != nil {
		t.Error(err)
	}
	_ = s.Close()
}

// TestOpenReadsEachRecordOnce counts how often an Open opens the records of a store.
func TestOpenReadsEachRecordOnce(t *testing.T) {
	root := onTmpfs(t)
	largeStore(t, root, 5)
	d := &catalog.Disk{Root: root}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	layers, err := filepath.Glob(d.Path(catalog.LayersDir, "*"))
	if err != nil || len(layers) != 50 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	for _, dir := range append(layers, d.Path(catalog.RecordsDir)) {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, root, func(c *Config) { c.BootID = "bench" })
	if n := len(s.List()); n != 5 {
		t.Fatalf("%d images", n)
	}
	opened := 0
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			break
		}
		for at := 0; at < n; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			if e.Mask&unix.IN_ISDIR == 0 {
				opened++
			}
			at += unix.SizeofInotifyEvent + int(e.Len)
		}
	}
	if opened != 55 {
		t.Errorf("55 records were opened %d times", opened)
	}
}

// TestChangesCostTheSame changes an image and removes it, in a small store and in a large one.
func TestChangesCostTheSame(t *testing.T) {
	small, large := changeCost(t, 10), changeCost(t, 200)
	if large > 2*small+256<<10 {
		t.Errorf("a change allocates %d bytes in a store of 200 images, %d in one of 10", large, small)
	}
}

// changeCost is what it allocates to move a tag to an image of a store and to remove the image, in bytes.
func changeCost(t *testing.T, images int) uint64 {
	t.Helper()
	root := onTmpfs(t)
	largeStore(t, root, images)
	s := still(t, root, "bench")
	s.catalog.Repin(catalog.Configured, pinnedByBench)
	rec := *s.catalog.Record(s.List()[3].ID)
	rec.Tags = []string{s.List()[4].RepoTags[0]}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := catalog.Commit(s.catalog, &rec); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), rec.ID); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if _, err := os.Stat(s.disk.RecordPath(rec.ID)); !os.IsNotExist(err) || layersOnDisk(t, s) != 10*(images-1) {
		t.Errorf("%d layers are left, %v", layersOnDisk(t, s), err)
	}
	return after.TotalAlloc - before.TotalAlloc
}
