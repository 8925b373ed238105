package image

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/image/catalog"
	"berth/test/timeouts"
)

// durable waits until the records on the disk say that all images are durable.
func durable(t testing.TB, s *Store) {
	t.Helper()
	for deadline := time.Now().Add(timeouts.For(2 * time.Minute)); ; time.Sleep(5 * time.Millisecond) {
		done := true
		for _, img := range s.List() {
			var rec catalog.ImageRecord
			_, err := catalog.ImageKind.Read(s.disk.RecordPath(img.ID), &rec)
			done = done && err == nil && rec.Durable
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the images do not become durable")
		}
	}
}

// still opens a store that makes nothing durable.
func still(t *testing.T, root, boot string) *Store {
	t.Helper()
	s := open(t, root, func(c *Config) { c.BootID = boot })
	s.stop()
	s.work.Wait()
	s.ctx = context.Background()
	return s
}

// TestDurableMarkRacesRemoval has rounds of the syncer meet pulls and removals: no record may outlive its image, and
// no mark may come to a layer that was fetched anew.
func TestDurableMarkRacesRemoval(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	base := gz(t, file("base", "1"))
	push(t, host+"/a:v1", imageOf(t, base, gz(t, file("a", "1"))))
	push(t, host+"/b:v1", imageOf(t, base, gz(t, file("b", "1"))))
	s := open(t, t.TempDir())
	var work, rounds sync.WaitGroup
	end := make(chan struct{})
	rounds.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			s.syncer.Wake()
			time.Sleep(time.Millisecond)
		}
	})
	for _, name := range []string{"/a:v1", "/b:v1"} {
		work.Go(func() {
			for range 15 {
				img, err := s.Pull(t.Context(), PullRequest{Reference: host + name})
				if err == nil {
					err = s.Remove(t.Context(), img.ID)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	close(end)
	rounds.Wait()
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	records, err := os.ReadDir(s.disk.Path(catalog.RecordsDir))
	if err != nil || len(records) != 0 || len(s.List()) != 0 || layersOnDisk(t, s) != 0 {
		t.Errorf("left: records %v, %d layers, images %v, %v", records, layersOnDisk(t, s), s.List(), err)
	}
	sound(t, s)
}

// TestLayerOfTwoImages has a durable image share a layer with one that is not: after another boot the first is whole
// and the other is gone, with what was its own.
func TestLayerOfTwoImages(t *testing.T) {
	host := startRegistry(t, "")
	base := gz(t, file("base", "1"))
	push(t, host+"/safe:v1", imageOf(t, base, gz(t, file("safe", "1"))))
	push(t, host+"/new:v1", imageOf(t, base, gz(t, file("new", "1"))))
	root := t.TempDir()
	s := open(t, root, func(c *Config) { c.BootID = "one" })
	safe := pull(t, s, host+"/safe:v1")
	durable(t, s)
	_ = s.Close()
	s = still(t, root, "one")
	pull(t, s, host+"/new:v1")
	_ = s.Close()
	s = open(t, root, func(c *Config) { c.BootID = "two" })
	if got := s.List(); len(got) != 1 || got[0].ID != safe.ID || layersOnDisk(t, s) != 2 {
		t.Errorf("after another boot: %+v, %d layers", got, layersOnDisk(t, s))
	}
	sound(t, s)
}

// TestNameForADurableImage gives an image that the disk has another name, and takes one from it: no power cut may
// cost it, so its records say durable all the time.
func TestNameForADurableImage(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	img := imageOf(t, gz(t, file("a", "1")))
	push(t, host+"/a:v1", img)
	push(t, host+"/a:v2", img)
	push(t, host+"/b:v1", imageOf(t, gz(t, file("b", "1"))))
	root := t.TempDir()
	s := open(t, root, func(c *Config) { c.BootID = "one" })
	first := pull(t, s, host+"/a:v1")
	durable(t, s)
	_ = s.Close()
	s = still(t, root, "one")
	before, err := os.Stat(s.disk.RecordPath(first.ID))
	if err != nil {
		t.Fatal(err)
	}
	pull(t, s, host+"/a:v1")
	if after, err := os.Stat(s.disk.RecordPath(first.ID)); err != nil || !os.SameFile(before, after) {
		t.Errorf("a pull that found all as it was wrote the record again: %v", err)
	}
	pull(t, s, host+"/a:v2")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("c", "1"))))
	second := pull(t, s, host+"/a:v1") // the tag leaves the image
	if img, ok := s.Get(host + "/a:v1"); !ok || img.ID != second.ID {
		t.Errorf("the tag leads to %s", img.ID)
	}
	_ = s.Close()
	s = open(t, root, func(c *Config) { c.BootID = "two" })
	got, ok := s.Get(first.ID) // which has its tag again: that was on the disk, and the other image was not
	if !ok || fmt.Sprint(got.RepoTags) != fmt.Sprintf("[%s/a:v1 %s/a:v2]", host, host) || len(s.List()) != 1 {
		t.Errorf("after another boot: %v %+v, %d images", ok, got, len(s.List()))
	}
	sound(t, s)
}

// TestTagLeavesTheDisk has a tag move to an image that is not durable yet. The disk leaves it with the image before,
// until it has the new one: a daemon that starts again before or after that knows the new one by it, and once that is
// removed, no image has the tag.
func TestTagLeavesTheDisk(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	tag := host + "/a:v1"
	push(t, tag, imageOf(t, gz(t, file("a", "1"))))
	root := t.TempDir()
	s := open(t, root, func(c *Config) { c.BootID = "one" })
	first := pull(t, s, tag)
	durable(t, s)
	push(t, tag, imageOf(t, gz(t, file("b", "1"))))
	_ = s.Close()
	s = still(t, root, "one")
	second := pull(t, s, tag)
	onDisk := func() []string {
		var rec catalog.ImageRecord
		if _, err := catalog.ImageKind.Read(s.disk.RecordPath(first.ID), &rec); err != nil {
			t.Fatal(err)
		}
		return rec.Tags
	}
	for range 2 {
		img, _ := s.Get(tag)
		if kept := len(onDisk()) == 1; img.ID != second.ID || kept == img.Durable {
			t.Errorf("%s leads to %s, durable %v, and the first image has %v on the disk",
				tag, img.ID, img.Durable, onDisk())
		}
		_ = s.Close()
		s = still(t, root, "one") // which may make the image durable while it opens
	}
	if err := s.syncer.SyncOnce(); err != nil {
		t.Fatal(err)
	}
	if img, _ := s.Get(tag); img.ID != second.ID || !img.Durable || len(onDisk()) != 0 {
		t.Errorf("%s leads to %s, and the first image has %v on the disk", tag, img.ID, onDisk())
	}
	if err := s.Remove(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	s = open(t, root, func(c *Config) { c.BootID = "one" })
	if img, ok := s.Get(tag); ok {
		t.Errorf("%s leads to %s after its image was removed", tag, img.ID)
	}
	sound(t, s)
}

// TestRepairWithoutCredentials has a broken image whose registry lets nobody in any more: it stays, with words that
// say why and what to do, and doing so brings it whole.
func TestRepairWithoutCredentials(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "hello"))))
	push(t, host+"/other:v1", imageOf(t, gz(t, file("b", "1"))))
	var closed atomic.Bool
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if closed.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	img := pull(t, s, p.host+"/a:v1")
	pull(t, s, p.host+"/other:v1")
	if err := os.Remove(s.LayerDirs(img)[0] + "/a"); err != nil {
		t.Fatal(err)
	}
	closed.Store(true)
	var found []Finding
	if err := s.Check(t.Context(), true, func(f Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Error("nothing found")
	}
	for _, f := range found {
		for _, want := range []string{"it stays as it is", "with its credentials", "401 Unauthorized"} {
			if f.Repaired || !strings.Contains(f.Problem, want) {
				t.Errorf("found %+v", f)
			}
		}
	}
	if got := s.List(); len(got) != 2 {
		t.Errorf("images %+v", got)
	}
	nothingInFlight(t, s)
	closed.Store(false)
	if err := s.Remove(t.Context(), img.ID); err != nil {
		t.Error(err)
	}
	if got := content(t, s, pull(t, s, p.host+"/a:v1"), "a"); got != "hello" {
		t.Errorf("after the next pull: %q", got)
	}
	sound(t, s)
}

// TestRepairByHand breaks a layer in every way, and has it repaired from its registry.
func TestRepairByHand(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		harm func(dir string) error
		want string
	}{
		"missing file": {func(dir string) error { return os.Remove(dir + "/etc/a") }, "is missing"},
		"changed byte": {func(dir string) error { return os.WriteFile(dir+"/etc/a", []byte("hellp"), 0) }, "etc/a"},
		"changed mode": {func(dir string) error { return os.Chmod(dir+"/etc/a", 0o777|os.ModeSetuid) }, "mode"},
		"extra file":   {func(dir string) error { return os.WriteFile(dir+"/etc/more", nil, 0o600) }, "is in no manifest"},
		"no manifest":  {func(dir string) error { return os.Remove(filepath.Dir(dir) + "/manifest") }, "manifest"},
	}
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, folder("etc"), file("etc/a", "hello"))))
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			img := pull(t, s, host+"/a:v1")
			if err := way.harm(s.LayerDirs(img)[0]); err != nil {
				t.Fatal(err)
			}
			var found []string
			err := s.Check(t.Context(), true, func(f Finding) {
				found = append(found, f.Path+" "+f.Problem)
				if !f.Repaired {
					t.Errorf("not repaired: %+v", f)
				}
			})
			if err != nil || !strings.Contains(strings.Join(found, "\n"), way.want) {
				t.Errorf("found %q, %v", found, err)
			}
			if got := content(t, s, img, "etc/a"); got != "hello" {
				t.Errorf("after the repair: %q", got)
			}
			sound(t, s)
		})
	}
}

// TestFailingDisk has the disk fail a round: what it was to take is never called durable, although the next round
// succeeds, and neither by a daemon that starts after it.
func TestFailingDisk(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	push(t, host+"/b:v1", imageOf(t, gz(t, file("b", "1"))))
	root := t.TempDir()
	s := still(t, root, "one")
	a := pull(t, s, host+"/a:v1")
	good := s.syncer.Flush
	s.syncer.Flush = func() error { return unix.EIO }
	if err := s.syncer.SyncOnce(); err == nil {
		t.Error("the round succeeded")
	}
	s.syncer.Flush = good
	b := pull(t, s, host+"/b:v1")
	for range 2 {
		if err := s.syncer.SyncOnce(); err != nil {
			t.Error(err)
		}
		gotA, okA := s.Get(a.ID)
		gotB, okB := s.Get(b.ID)
		if !okA || gotA.Durable || !okB || !gotB.Durable {
			t.Errorf("durable: a %v %v, b %v %v", okA, gotA.Durable, okB, gotB.Durable)
		}
		sound(t, s)
		_ = s.Close()
		s = still(t, root, "one")
	}
	_ = s.Close()
	s = still(t, root, "two")
	if got := s.List(); len(got) != 1 || got[0].ID != b.ID {
		t.Errorf("after another boot: %+v", got)
	}
}
