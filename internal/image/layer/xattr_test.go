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
