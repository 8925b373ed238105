package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// small mounts a file system in memory, and opens a store there that leaves so many percent of it free.
func small(t *testing.T, options string, percent int) *Store {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	s := open(t, root, func(c *Config) { c.MinFreePercent, c.MaxPullLayers = percent, 1 })
	t.Cleanup(func() { _ = s.Close(); _ = unix.Unmount(root, unix.MNT_DETACH) })
	return s
}

// tooLow wants an error that says that a floor ended the work, and what to do.
func tooLow(t *testing.T, s *Store, err error) {
	t.Helper()
	if kindOf(err) != errdefs.ErrResourceExhausted {
		t.Errorf("%v: the kind is %v", err, kindOf(err))
	}
	words := []string{
		"the file system of " + s.disk.Root, "which " + minFreeKey + " keeps for pods", "MiB free", "remove images",
		"lower " + minFreeKey,
	}
	for _, want := range words {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// TestFloorEndsPulls pulls what would fit, and would leave too little: by bytes, by inodes, by copying from a lower
// layer.
func TestFloorEndsPulls(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	var many []entry
	for i := range 700 {
		many = append(many, file(fmt.Sprint("f", i), ""))
	}
	first := gz(t, file("a", "1"))
	half := gz(t, file("b", strings.Repeat("b", 3<<20)))
	link := entry{Header: tar.Header{Name: "c", Typeflag: tar.TypeLink, Linkname: "b"}}
	for name, c := range map[string]struct {
		options string
		image   v1.Image
	}{
		"bytes":  {"size=8m", imageOf(t, first, gz(t, file("b", strings.Repeat("b", 7<<20))))},
		"inodes": {"size=8m,nr_inodes=1000", imageOf(t, first, gz(t, many...))},
		"copies": {"size=8m", imageOf(t, first, half, gz(t, link))},
	} {
		push(t, host+"/"+name+":v1", c.image)
		t.Run(name, func(t *testing.T) {
			s := small(t, c.options, 40)
			_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/" + name + ":v1"})
			tooLow(t, s, err)
			nothingInFlight(t, s)
			if n := layersOnDisk(t, s); n != 0 {
				t.Errorf("%d layers are left", n)
			}
			cfg := s.pipeline.settings().Config
			cfg.MinFreePercent = 1
			if err := s.Reconfigure(cfg); err != nil {
				t.Fatal(err)
			}
			pull(t, s, host+"/"+name+":v1") // it fits
		})
	}
}

// TestFloorEndsImports imports an archive of which the file alone would leave too little.
func TestFloorEndsImports(t *testing.T) {
	t.Parallel()
	s := small(t, "size=8m", 40)
	noise := make([]byte, 6<<20)
	copy(noise, "not all zeroes")
	archive := ociTar(t, map[string]v1.Image{"big:v1": imageOf(t, plainLayer(t, file("a", string(noise))))})
	_, err := s.Import(t.Context(), bytes.NewReader(archive), nil)
	tooLow(t, s, err)
	nothingInFlight(t, s)
}

// TestBelowTheFloor pulls onto a file system on which too little is free already: what nobody needs is collected,
// then nothing is fetched, and what is there serves on.
func TestBelowTheFloor(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	p := startProxy(t, host, nil)
	push(t, host+"/there:v1", imageOf(t, gz(t, file("a", "1"))))
	push(t, host+"/cut:v1", imageOf(t, gz(t, file("left", strings.Repeat("x", 4<<20))), gz(t, file("../evil", ""))))
	push(t, host+"/new:v1", imageOf(t, gz(t, file("b", "2"))))
	push(t, host+"/newer:v1", imageOf(t, gz(t, file("c", "3"))))
	s := small(t, "size=16m", 40)
	pull(t, s, p.host+"/there:v1")
	if _, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/cut:v1"}); err == nil || layersOnDisk(t, s) != 2 {
		t.Fatalf("%d layers after a pull that a next one may complete, %v", layersOnDisk(t, s), err)
	}
	filler := filepath.Join(s.disk.Root, "filler")
	if err := os.WriteFile(filler, make([]byte, 7<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	pull(t, s, p.host+"/new:v1") // in the room of what the failed pull left
	if n := layersOnDisk(t, s); n != 2 {
		t.Errorf("%d layers after a pull that had to make room", n)
	}
	if err := os.WriteFile(filler, make([]byte, 12<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before := len(p.blobGets())
	_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/newer:v1"})
	tooLow(t, s, err)
	if now := len(p.blobGets()); now > before+1 { // the config
		t.Errorf("%d blobs were fetched in vain", now-before)
	}
	img := pull(t, s, p.host+"/there:v1")
	_, release, err := s.Use(img.ID)
	if err != nil || content(t, s, img, "a") != "1" {
		t.Errorf("what is there cannot be used: %v", err)
	}
	release()
	_, err = s.Import(t.Context(), bytes.NewReader(nil), nil)
	tooLow(t, s, err)
	if err := errors.Join(s.Remove(t.Context(), img.ID), os.Remove(filler)); err != nil {
		t.Error(err)
	}
	pull(t, s, p.host+"/newer:v1")
	sound(t, s)
}
