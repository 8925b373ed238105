package image

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// packings are one image three times: its layers with gzip, with zstd, and as they are.
func packings(t *testing.T, f *frozenServer) {
	t.Helper()
	one, two, three := goodEntries()
	f.put(t, "gzip", imageOf(t, gz(t, one...), gz(t, two...), gz(t, three...)))
	f.put(t, "zstd", imageOf(t, zst(t, one...), zst(t, two...), zst(t, three...)))
	f.put(t, "plain", imageOf(t, plainLayer(t, one...), plainLayer(t, two...), plainLayer(t, three...)))
}

// goodEntries are the entries of three layers, of which the second has to be finalized over the first.
func goodEntries() (one, two, three []entry) {
	return []entry{folder("d"), file("d/a", "good")}, []entry{file("d/implied/x", "good")}, []entry{file("top", "good")}
}

// isGood wants an image to be found by names, with the content that its diff ids promise.
func isGood(t *testing.T, s *Store, id string, names ...string) {
	t.Helper()
	for _, name := range names {
		img, ok := s.Get(name)
		if !ok || img.ID != id {
			t.Errorf("%s is %v", name, img.ID)
			continue
		}
		for _, path := range []string{"d/a", "d/implied/x", "top"} {
			if got := content(t, s, img, path); got != "good" {
				t.Errorf("%s has %q in %s", name, got, path)
			}
		}
	}
}

// TestPackings pulls one image in several packings, from repositories of their own: it is one image, with the names
// of all, and pulled again it costs one HEAD each. What nothing needs any more goes with the next removal.
func TestPackings(t *testing.T) {
	for _, order := range [][]string{
		{"gzip", "zstd", "plain"}, {"plain", "gzip", "zstd"}, {"zstd", "plain", "gzip"}, {"gzip", "plain", "zstd"},
	} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			f := blobServer(t)
			packings(t, f)
			f.put(t, "other", imageOf(t, gz(t, file("other", "1"))))
			s := open(t, t.TempDir())
			pull(t, s, f.host+"/other:other")
			var img Image
			var names []string
			for _, p := range order {
				names = append(names, f.host+"/"+p+":"+p)
				img = pull(t, s, names[len(names)-1])
			}
			isGood(t, s, img.ID, names...)
			f.take()
			for _, name := range names { // one whose manifest is not the last one is read once more
				pull(t, s, name)
				f.take()
				if again := pull(t, s, name); f.take() != "HEAD manifests" || !slices.Equal(again.Layers, img.Layers) {
					t.Errorf("%s is not unchanged: %v, %v", name, again.Layers, img.Layers)
				}
			}
			sound(t, s)
			if err := s.Remove(t.Context(), f.host+"/other:other"); err != nil || layersOnDisk(t, s) != 3 {
				t.Errorf("%d layers on disk, %v", layersOnDisk(t, s), err)
			}
			sound(t, s)
			isGood(t, s, img.ID, names...)
		})
	}
}

// onOpen calls do when somebody opens a file for the first time, who waits for that.
func onOpen(t *testing.T, path string, do func()) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "fanotify")
	t.Cleanup(func() { _ = events.Close() })
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path); err != nil {
		t.Fatal(err)
	}
	go func() {
		var event unix.FanotifyEventMetadata
		for binary.Read(events, binary.NativeEndian, &event) == nil {
			do()
			answer := unix.FanotifyResponse{Fd: event.Fd, Response: unix.FAN_ALLOW}
			_ = binary.Write(events, binary.NativeEndian, answer)
			_ = unix.Close(int(event.Fd))
		}
	}()
}

// TestPackingsWithoutTheirCaller has the caller of a pull leave while the daemon compares the layers of another packing
// with those that it has: the image keeps its names.
func TestPackingsWithoutTheirCaller(t *testing.T) {
	f := blobServer(t)
	packings(t, f)
	s := open(t, t.TempDir())
	img := pull(t, s, f.host+"/gzip:gzip")
	ctx, cancel := context.WithCancel(t.Context())
	onOpen(t, filepath.Join(s.disk.LayerFS(img.Layers[0]), "d/a"), cancel)
	if _, err := s.Pull(ctx, PullRequest{Reference: f.host + "/zstd:zstd"}); kindOf(err) != context.Canceled {
		t.Errorf("pulled for a caller who has left: %v", err)
	}
	isGood(t, s, img.ID, f.host+"/gzip:gzip", img.ID)
	sound(t, s)
}

// spoil has the layer of an image be another one than its tar says, as if what unpacked it had lied: the manifest
// agrees.
func spoil(t *testing.T, s *Store, img Image, n int, path string) {
	t.Helper()
	full := filepath.Join(s.disk.LayerFS(img.Layers[n]), path)
	info, err := os.Stat(full)
	if err == nil {
		err = errors.Join(os.WriteFile(full, []byte("evil"), 0o600), os.Chtimes(full, info.ModTime(), info.ModTime()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLyingUnpackerFirst has an image unpacked wrongly under its right id. Whoever pulls the same image with other
// blobs gets the right one, and the names of the first are gone.
func TestLyingUnpackerFirst(t *testing.T) {
	for n, path := range []string{"d/a", "d/implied/x", "top"} {
		t.Run(path, func(t *testing.T) {
			f := blobServer(t)
			packings(t, f)
			var used map[string]struct{} // or the wrong layers were swept, and the first unpacked again
			s := open(t, t.TempDir(), func(c *Config) {
				c.InUse = func() (map[string]struct{}, bool) { return used, true }
			})
			evil := pull(t, s, f.host+"/evil:gzip")
			spoil(t, s, evil, n, path)
			used = map[string]struct{}{}
			for _, l := range evil.Layers {
				used[l] = struct{}{}
			}
			good := pull(t, s, f.host+"/good:zstd")
			isGood(t, s, good.ID, f.host+"/good:zstd", good.ID)
			if _, ok := s.Get(f.host + "/evil:gzip"); ok || len(good.RepoTags) != 1 || len(good.RepoDigests) != 1 {
				t.Errorf("the image is %v %v", good.RepoTags, good.RepoDigests)
			}
			if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/evil:gzip"}); kindOf(err) != errdefs.ErrDataLoss {
				t.Errorf("the first again: %v", err)
			}
			isGood(t, s, good.ID, f.host+"/good:zstd", good.ID)
		})
	}
}

// TestLyingUnpackerSecond has the blobs of a good image's other packing unpacked wrongly: the good one is what it was.
func TestLyingUnpackerSecond(t *testing.T) {
	for n, path := range []string{"d/a", "d/implied/x", "top"} {
		t.Run(path, func(t *testing.T) {
			f := blobServer(t)
			packings(t, f)
			one, two, three := goodEntries()
			f.put(t, "lure", imageOf(t, gz(t, one...), gz(t, two...), gz(t, three...), gz(t, file("lure", ""))))
			s := open(t, t.TempDir())
			lure := pull(t, s, f.host+"/evil:lure")
			spoil(t, s, lure, n, path)
			good := pull(t, s, f.host+"/good:zstd")
			if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/evil:gzip"}); kindOf(err) != errdefs.ErrDataLoss {
				t.Errorf("the other packing: %v", err)
			}
			isGood(t, s, good.ID, f.host+"/good:zstd", good.ID)
			if now, _ := s.Get(good.ID); len(now.RepoTags) != 1 || !slices.Equal(now.Layers, good.Layers) {
				t.Errorf("the image is %v %v", now.RepoTags, now.Layers)
			}
		})
	}
}
