package image

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// TestRepairAfterAPull has a pull bring back what the repair is about to remove.
func TestRepairAfterAPull(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "hello"))))
	push(t, host+"/b:v1", imageOf(t, gz(t, file("b", "hello"))))
	root := t.TempDir()
	s := open(t, root)
	refs := []string{host + "/a:v1", host + "/b:v1"}
	imgs := []Image{pull(t, s, refs[0]), pull(t, s, refs[1])}
	durable(t, s)
	for _, img := range imgs {
		for _, path := range []string{s.disk.LayerRecordPath(img.Layers[0]), s.disk.RecordPath(img.ID)} {
			raw, err := os.ReadFile(path)
			if err == nil {
				raw[len(raw)-2] ^= 1
				err = os.WriteFile(path, raw, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = s.Close()
	s = open(t, root)
	if n := len(s.Problems()); n != 4 {
		t.Fatalf("%d problems: %v", n, s.Problems())
	}
	var pulled []os.FileInfo
	err := s.Check(t.Context(), true, func(Finding) {
		for i := len(pulled); i < len(refs); i++ {
			info, err := os.Stat(s.LayerDirs(pull(t, s, refs[i]))[0])
			if err != nil {
				t.Error(err)
			}
			pulled = append(pulled, info)
		}
	})
	if err != nil {
		t.Error(err)
	}
	for i, ref := range refs {
		img, ok := s.Get(ref)
		if !ok || content(t, s, img, []string{"a", "b"}[i]) != "hello" {
			t.Errorf("%s: %v", ref, ok)
			continue
		}
		if _, err := os.Stat(s.disk.RecordPath(img.ID)); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(s.LayerDirs(img)[0]); err != nil || !os.SameFile(info, pulled[i]) {
			t.Errorf("%s: what the pull brought was replaced, perhaps under a container: %v", ref, err)
		}
	}
	// What the pulls put aside stays until a sweep, for a container may have it mounted.
	if err := s.Check(t.Context(), false, func(f Finding) { t.Errorf("check finds %+v", f) }); err != nil {
		t.Error(err)
	}
}

// TestLayerTakenByHand has somebody delete a layer's directory: it can be repaired, and removed, and stops no sweep.
func TestLayerTakenByHand(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "hello"))))
	push(t, host+"/b:v1", imageOf(t, gz(t, file("b", "hello"))))
	s := open(t, t.TempDir())
	img, other := pull(t, s, host+"/a:v1"), pull(t, s, host+"/b:v1")
	durable(t, s)
	for _, i := range []Image{img, other} {
		if err := os.RemoveAll(filepath.Dir(s.LayerDirs(i)[0])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), other.ID); err != nil {
		t.Error(err)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Check(t.Context(), true, func(f Finding) {
		if !f.Repaired {
			t.Errorf("%+v", f)
		}
	}); err != nil {
		t.Error(err)
	}
	if got := content(t, s, img, "a"); got != "hello" {
		t.Errorf("after the repair: %q", got)
	}
	sound(t, s)
}

// TestChainsAreForgotten looks for what the store keeps in memory of layers that it finalized.
func TestChainsAreForgotten(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, folder("d")), gz(t, file("d/x", "1"))))
	s := open(t, t.TempDir())
	if img := pull(t, s, host+"/a:v1"); len(img.Layers) != 2 {
		t.Errorf("%+v", img)
	}
	s.pipeline.finalizing.mu.Lock()
	defer s.pipeline.finalizing.mu.Unlock()
	if n := len(s.pipeline.finalizing.byKey); n != 0 {
		t.Errorf("%d chains are remembered", n)
	}
}

// TestWhatAFailedPullLeaves fails pulls behind their first layer: a full disk gets the room of it back at once, any
// other when an image is removed.
func TestWhatAFailedPullLeaves(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	first := gz(t, file("a", strings.Repeat("x", 1<<20)))
	push(t, host+"/big:v1", imageOf(t, first, gz(t, file("b", strings.Repeat("x", 8<<20)))))
	push(t, host+"/small:v1", imageOf(t, gz(t, file("c", "1"))))
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	s := open(t, root, func(c *Config) { c.MaxPullLayers = 1 })
	t.Cleanup(func() { _ = s.Close(); _ = unix.Unmount(root, unix.MNT_DETACH) })
	small := pull(t, s, host+"/small:v1")
	if _, err := s.Pull(t.Context(),
		PullRequest{Reference: host + "/big:v1"}); kindOf(err) != errdefs.ErrResourceExhausted {
		t.Errorf("%v", err)
	}
	if n := layersOnDisk(t, s); n != 1 {
		t.Errorf("%d layers after a pull that filled the disk", n)
	}
	tuned := *s.pipeline.settings()
	tuned.MaxLayerBytes = 2 << 20
	s.pipeline.current.settings.Store(&tuned)
	_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/big:v1"})
	if err == nil || !strings.Contains(err.Error(), "more than the 2097152 bytes allowed") {
		t.Errorf("%v", err)
	}
	if n := layersOnDisk(t, s); n != 2 {
		t.Errorf("%d layers after a pull that a next one may complete", n)
	}
	if err := s.Remove(t.Context(), small.ID); err != nil || layersOnDisk(t, s) != 0 {
		t.Errorf("%d layers after the removal, %v", layersOnDisk(t, s), err)
	}
}

// TestOneLayerKeepsNoOtherFromTheDisk has somebody delete a layer that is not durable yet: all else becomes durable.
func TestOneLayerKeepsNoOtherFromTheDisk(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	s := still(t, t.TempDir(), "one")
	var imgs []Image
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		push(t, host+"/"+name+":v1", imageOf(t, gz(t, file(name, "hello"))))
		imgs = append(imgs, pull(t, s, host+"/"+name+":v1"))
	}
	if err := os.RemoveAll(filepath.Dir(s.LayerDirs(imgs[0])[0])); err != nil {
		t.Fatal(err)
	}
	if err := s.syncer.SyncOnce(); err == nil {
		t.Error("the deleted layer was made durable")
	}
	for i, img := range imgs {
		if got, _ := s.Get(img.ID); got.Durable != (i > 0) {
			t.Errorf("image %d: durable %v", i, got.Durable)
		}
	}
}

// TestSlowRepairGivesItsWindowUp has a repair fetch a layer with the largest window from a slow registry: a pull of a
// layer that needs as much does not wait for it.
func TestSlowRepairGivesItsWindowUp(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/slow:v1", imageOf(t, wide(t, "a", 3<<20)))
	push(t, host+"/fast:v1", imageOf(t, wide(t, "fast", 1<<20)))
	var slows atomic.Bool
	var asked atomic.Int32
	shut := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if slows.Load() && strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
			asked.Add(1)
			w = &dripping{ResponseWriter: w, after: 2 << 20, goOn: shut}
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	img := pull(t, s, p.host+"/slow:v1")
	damageLayer(t, s, img, 0)
	slows.Store(true)
	repaired := make(chan struct{})
	go func() {
		defer close(repaired)
		repairs(t, s, 1, true, "")
	}()
	until(t, "the repair has begun", func() bool { return asked.Load() == 1 })
	time.Sleep(time.Second) // it gets its window
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if _, err := s.Pull(ctx, PullRequest{Reference: host + "/fast:v1"}); err != nil {
		t.Errorf("the pull beside it: %v", err)
	}
	close(shut)
	<-repaired
	sound(t, s)
}

// dripping passes on so many bytes, then a few at a time, which is no stall, and the rest when it is told to.
type dripping struct {
	http.ResponseWriter
	after int
	goOn  chan struct{}
}

func (d *dripping) Write(p []byte) (n int, err error) {
	for err == nil && n < len(p) {
		some := len(p) - n
		if d.after -= some; d.after < 0 {
			some = min(some, 1<<10)
			_ = http.NewResponseController(d.ResponseWriter).Flush()
			select {
			case <-d.goOn:
			case <-time.After(100 * time.Millisecond):
			}
		}
		var m int
		m, err = d.ResponseWriter.Write(p[n : n+some])
		n += m
	}
	return n, err
}
