package image

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// TestOverlayShowsTheImage mounts what LayerDirs returns and looks at it through the kernel.
func TestOverlayShowsTheImage(t *testing.T) {
	host := startRegistry(t, "")
	layers := []v1.Layer{
		gz(t, folder("etc"), file("etc/old", "old"), file("etc/kept", "kept"), folder("opq"), file("opq/hidden", ""),
			folder("usr"), folder("usr/lib"),
			entry{Header: tar.Header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "usr/lib"}},
			file("etc/linked", "linked")),
		zst(t, file("etc/.wh.old", ""), file("opq/.wh..wh..opq", ""), file("opq/shown", "")),
		plainLayer(t, file("lib/so", "so"),
			entry{Header: tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "etc/linked"}}),
	}
	push(t, host+"/m:v1", imageOf(t, layers...))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/m:v1")
	at := t.TempDir()
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY,
		"lowerdir="+strings.Join(s.LayerDirs(img), ":")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	for p, want := range map[string]string{"etc/kept": "kept", "usr/lib/so": "so", "lib/so": "so", "hard": "linked",
		"opq/shown": ""} {
		if got, err := os.ReadFile(filepath.Join(at, p)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", p, got, err)
		}
	}
	for _, p := range []string{"etc/old", "opq/hidden"} {
		if _, err := os.Lstat(filepath.Join(at, p)); !os.IsNotExist(err) {
			t.Errorf("%s shows through: %v", p, err)
		}
	}
	var a, b unix.Stat_t
	_ = unix.Lstat(filepath.Join(at, "hard"), &a)
	_ = unix.Lstat(filepath.Join(at, "etc/linked"), &b)
	if a.Ino != b.Ino || a.Nlink != 2 {
		t.Errorf("inodes %d and %d, %d links: not one file", a.Ino, b.Ino, a.Nlink)
	}
	if st, err := os.Lstat(filepath.Join(at, "lib")); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("lib is no longer a symlink: %v", err)
	}
}

// TestHundredsOfLayers pulls an image of 200 layers.
func TestHundredsOfLayers(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	var layers []v1.Layer
	for i := range 200 {
		layers = append(layers, gz(t, file("f", strings.Repeat("x", i))))
	}
	push(t, host+"/many:v1", imageOf(t, layers...))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/many:v1")
	if n := len(s.LayerDirs(img)); n != 200 {
		t.Errorf("%d layer directories", n)
	}
	sound(t, s)
}
