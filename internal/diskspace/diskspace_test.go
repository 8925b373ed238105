package diskspace

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/volume"
)

func TestExplain(t *testing.T) {
	dir := t.TempDir()
	for errno, want := range map[error]string{
		unix.ENOSPC: "): remove images, or make it larger", unix.EDQUOT: "quota", unix.EROFS: "read-only",
		unix.EIO: "shut it down",
	} {
		cause := fmt.Errorf("write: %w", errno)
		err := Explain(cause, dir, "remove images")
		for _, w := range []string{cause.Error(), dir, want} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: no %q in %q", errno, w, err)
			}
		}
		if !errors.Is(err, errno) || Lacking(err) != (errno == unix.ENOSPC || errno == unix.EDQUOT) {
			t.Errorf("%v: the cause is lost", errno)
		}
		if again := Explain(fmt.Errorf("more: %w", err), dir, "x"); strings.Count(again.Error(), "the file system") > 1 {
			t.Errorf("said twice: %v", again)
		}
	}
	if err := Explain(os.ErrClosed, dir, "x"); err != os.ErrClosed {
		t.Errorf("another error: %v", err)
	}
	if err := Explain(nil, dir, "x"); err != nil {
		t.Errorf("no error: %v", err)
	}
	elsewhere := &os.LinkError{Op: "rename", Old: "/a/b", New: "/run/c/d", Err: unix.EROFS}
	if err := Explain(elsewhere, dir, "x"); !strings.Contains(err.Error(), "system of /run/c is") {
		t.Error(err)
	}
	if err := Explain(&os.PathError{Op: "write", Path: dir + "/d/e", Err: unix.EROFS}, dir, "x"); !strings.Contains(
		err.Error(), "system of "+dir+" is") {
		t.Error(err)
	}
	unmade := Explain(unix.ENOSPC, dir+"/none/below", "x")
	if err := unmade; !strings.Contains(err.Error(), "system of "+dir+" has too little room (") {
		t.Error(err)
	}
}

// TestMountsAreUsedUp tells a mount namespace that has as many mounts as it may have from a full file system: for both
// the kernel says ENOSPC.
func TestMountsAreUsedUp(t *testing.T) {
	info, most := mountInfo, mountMax
	t.Cleanup(func() { mountInfo, mountMax = info, most })
	dir := t.TempDir()
	mountInfo, mountMax = dir+"/info", dir+"/max"
	for mounts, want := range map[int]string{
		100_000: "there are 100000 mounts of 100000", 98_500: "fs.mount-max", 90_000: "too little room",
	} {
		lines := strings.Repeat("36 35 98:0 / /mnt\n", mounts)
		for name, text := range map[string]string{mountInfo: lines, mountMax: "100000\n"} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := Explain(fmt.Errorf("mount: %w", unix.ENOSPC), dir, "remove images")
		if !strings.Contains(err.Error(), want) || !Lacking(err) {
			t.Errorf("with %d mounts: %v", mounts, err)
		}
	}
	mountMax = dir + "/none"
	if err := Explain(unix.ENOSPC, dir, "x"); !strings.Contains(err.Error(), "too little room") {
		t.Errorf("where the kernel does not tell: %v", err)
	}
}

// TestInodes tells a file system that has bytes but no inodes from a full one.
func TestInodes(t *testing.T) {
	at := t.TempDir()
	volume.Mounted(t, at, volume.Ext4, 8, "-N", "64")
	if _, err := volume.FillInodes(at); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(at+"/more", nil, 0o600)
	if text := fmt.Sprint(Explain(err, at, "remove images")); !strings.Contains(text, ", 0 of 64 inodes)") {
		t.Errorf("%s", text)
	}
}
