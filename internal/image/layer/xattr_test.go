package layer

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/diskspace"
	"berth/test/volume"
)

// blocksOf1K is an ext4 with blocks of 1 KiB, which keeps no attribute of more.
func blocksOf1K(t *testing.T) string {
	t.Helper()
	at := t.TempDir()
	volume.Mounted(t, at, volume.Ext4, 8, "-b", "1024")
	return at
}

func attributed(i item, attrs map[string]int) item {
	i.PAXRecords, i.Format = map[string]string{}, tar.FormatPAX
	for name, n := range attrs {
		i.PAXRecords[paxXattr+name] = strings.Repeat("v", n)
	}
	return i
}

// TestXattrThatTheFileSystemDoesNotKeep unpacks attributes that an ext4 has no room for in its inodes: they are left
// out, as on a file system without attributes.
func TestXattrThatTheFileSystemDoesNotKeep(t *testing.T) {
	at := filepath.Join(blocksOf1K(t), "layer")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	tarball := archive(t,
		attributed(file("f", "content"), map[string]int{"user.big": 5000, "user.small": 10}),
		attributed(dir("d", 0o755), map[string]int{"user.big": 1500}))
	res, err := Unpack(t.Context(), strings.NewReader(string(tarball)), at, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if res.Unsupported != 2 {
		t.Errorf("%d attributes were left out", res.Unsupported)
	}
	buf := make([]byte, 100)
	if n, err := unix.Getxattr(filepath.Join(at, FS, "f"), "user.small", buf); n != 10 || err != nil {
		t.Errorf("the small attribute has %d bytes, %v", n, err)
	}
	if err := Verify(t.Context(), at, func(path, problem string) { t.Errorf("%s: %s", path, problem) }); err != nil {
		t.Error(err)
	}
}

// TestXattrsAreNotedAsTheyAreKept unpacks attributes that the kernel gives back otherwise than they were set, and some
// with names that are no UTF-8: what is noted of them is what is there.
func TestXattrsAreNotedAsTheyAreKept(t *testing.T) {
	at := t.TempDir()
	volume.Mounted(t, at, volume.Ext4, 8)
	at = filepath.Join(at, "layer")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	with := func(i item, attrs ...string) item {
		i.PAXRecords, i.Format = map[string]string{}, tar.FormatPAX
		for n := 0; n < len(attrs); n += 2 {
			i.PAXRecords[paxXattr+attrs[n]] = attrs[n+1]
		}
		return i
	}
	none := "\xff\xff\xff\xff"
	owner, group, others := "\x01\x00\x07\x00"+none, "\x04\x00\x05\x00"+none, "\x20\x00\x01\x00"+none
	plain := "\x02\x00\x00\x00" + owner + group + others // says no more than a mode
	user, mask := "\x02\x00\x06\x00\x07\x00\x00\x00", "\x10\x00\x06\x00"+none
	more := "\x02\x00\x00\x00" + owner + user + group + mask + others
	capable := "\x01\x00\x00\x03\x00\x04\x00\x00" + strings.Repeat("\x00", 16) // of the root user 0
	tarball := archive(t,
		with(file("plain", "text"), accessACL, plain),
		with(file("more", "text"), accessACL, more),
		with(file("capable", "text"), "security.capability", capable),
		with(file("odd", "text"), "user.\xff", "one", "user.\xfe", "two", "security.\xff", "three"),
		with(dir("d", 0o755), accessACL, plain, defaultACL, more, "user.\xff", "four"))
	res, err := Unpack(t.Context(), strings.NewReader(string(tarball)), at, Limits{Entries: 100})
	if err != nil || res.Unsupported != 0 {
		t.Fatalf("%d attributes were left out, %v", res.Unsupported, err)
	}
	if err := Verify(t.Context(), at, func(path, problem string) { t.Errorf("%s: %s", path, problem) }); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 100)
	for name, want := range map[string]string{"user.\xff": "one", "user.\xfe": "two", "security.\xff": "three"} {
		n, err := unix.Getxattr(filepath.Join(at, FS, "odd"), name, buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%q has %q, %v", name, buf[:max(n, 0)], err)
		}
	}
	if err := unix.Setxattr(filepath.Join(at, FS, "odd"), "user.\xff", []byte("changed"), 0); err != nil {
		t.Fatal(err)
	}
	found := ""
	if err := Verify(t.Context(), at, func(path, problem string) { found += path + ": " + problem }); err != nil {
		t.Error(err)
	}
	if !strings.Contains(found, "odd: ") {
		t.Errorf("a changed attribute is not found: %q", found)
	}
}

// TestXattrOnAFullDisk tells a disk that is full from an attribute that is too large.
func TestXattrOnAFullDisk(t *testing.T) {
	at := blocksOf1K(t)
	host := filepath.Join(at, "f")
	if err := os.WriteFile(host, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := setXattr(host, "user.big", make([]byte, 5000))
	if !errors.Is(err, errNoXattrRoom) || !unkept(err, typeFile) || diskspace.Lacking(err) {
		t.Errorf("too large: %v", err)
	}
	filler, err := volume.Fill(at)
	if err != nil {
		t.Fatal(err)
	}
	err = setXattr(host, "user.fits", make([]byte, 700))
	if !diskspace.Lacking(err) || unkept(err, typeFile) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := setXattr(host, "user.fits", make([]byte, 700)); err != nil {
		t.Error(err)
	}
}
