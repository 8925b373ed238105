package image

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"berth/internal/image/catalog"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
)

// TestRebase puts a layer over another base, while its blob cannot be had: it is made anew from what the store keeps
// of its tar, and is what a fetch would have made of it.
func TestRebase(t *testing.T) {
	f := blobServer(t)
	app := gz(t, file("d/implied/x", "1"), file("d/y", strings.Repeat("y", 5000)), file("d/y", "replaced"))
	f.put(t, "v1", imageOf(t, gz(t, folder("d"), file("d/a", "1")), app))
	f.put(t, "v2", imageOf(t, gz(t, folder("d"), file("d/b", "2")), app))
	fresh := pull(t, open(t, t.TempDir()), f.host+"/app:v2")
	root := t.TempDir()
	s := open(t, root)
	first := pull(t, s, f.host+"/app:v1")
	f.take()
	blob := digest.FromBytes(app.blob).String()
	f.deny = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, blob) }
	var mu sync.Mutex // guards phases
	phases := map[string]bool{}
	img, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/app:v2", Progress: func(p progress.Event) {
		mu.Lock()
		defer mu.Unlock()
		phases[p.Phase] = phases[p.Phase] || p.Layer == digest.Digest(blob)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if n := f.blobs(); n != 2 {
		t.Errorf("it asked for %d blobs, not for config and base", n)
	}
	if !phases[progress.Rebuilding] {
		t.Errorf("it was said to be %v", phases)
	}
	another := slices.Equal(img.Layers, fresh.Layers) && img.Layers[1] != first.Layers[1]
	if !another || content(t, s, img, "d/implied/x") != "1" {
		t.Errorf("the layers are %v, not %v", img.Layers, fresh.Layers)
	}
	sound(t, s)
	if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/stranger:v2"}); err == nil {
		t.Error("a repository got the layer without having its blob")
	}
}

// TestRebuildFromADamagedLayer has the layer that could give its tar damaged: that is told, and the blob is fetched.
func TestRebuildFromADamagedLayer(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"content":     func(d string) error { return os.WriteFile(filepath.Join(d, layer.FS, "d/x"), []byte("?"), 0o600) },
		"size":        func(d string) error { return os.Truncate(filepath.Join(d, layer.FS, "d/x"), 100) },
		"missing":     func(d string) error { return os.Remove(filepath.Join(d, layer.FS, "d/x")) },
		"skeleton":    func(d string) error { return os.Truncate(filepath.Join(d, layer.TarSplitFile), 40) },
		"no skeleton": func(d string) error { return os.Remove(filepath.Join(d, layer.TarSplitFile)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := blobServer(t)
			app := gz(t, file("d/x", "1"))
			f.put(t, "v1", imageOf(t, gz(t, file("base", "1")), app))
			f.put(t, "v2", imageOf(t, gz(t, file("base", "2")), app))
			var log bytes.Buffer
			s := open(t, t.TempDir(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			first := pull(t, s, f.host+"/app:v1")
			if err := damage(s.disk.Path(catalog.LayersDir, first.Layers[1])); err != nil {
				t.Fatal(err)
			}
			f.take()
			second := pull(t, s, f.host+"/app:v2")
			if n := f.blobs(); n != 3 {
				t.Errorf("it asked for %d blobs, not for config, base and layer", n)
			}
			if got := content(t, s, second, "d/x"); got != "1" {
				t.Errorf("the layer has %q", got)
			}
			if !strings.Contains(log.String(), first.Layers[1]) || !strings.Contains(log.String(), "problem=") {
				t.Errorf("nobody was told: %s", &log)
			}
			var found []string
			if err := s.Check(t.Context(), true, func(f Finding) {
				if found = append(found, f.Layer); !f.Repaired {
					t.Errorf("%+v", f)
				}
			}); err != nil || !slices.Contains(found, first.Layers[1]) || slices.Contains(found, second.Layers[1]) {
				t.Errorf("check finds %v, %v", found, err)
			}
			if n := f.blobs(); n != 0 {
				t.Errorf("the repair asked for %d blobs, though another layer has the tar", n)
			}
			sound(t, s)
		})
	}
}

// TestFinalizedTogether pulls two images at once that share a layer which is finalized over another base in each: its
// blob is fetched once.
func TestFinalizedTogether(t *testing.T) {
	for range 5 {
		f := blobServer(t)
		app := gz(t, file("d/implied/x", strings.Repeat("x", 1<<20)))
		f.put(t, "v1", imageOf(t, gz(t, folder("d"), file("d/a", "1")), app))
		f.put(t, "v2", imageOf(t, gz(t, folder("d"), file("d/b", "2")), app))
		s := open(t, t.TempDir())
		var wg sync.WaitGroup
		for _, tag := range []string{"v1", "v2", "v1", "v2"} {
			wg.Go(func() {
				if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/app:" + tag}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := f.blobs(); n != 5 { // two configs, two bases, one layer
			t.Errorf("%d blobs were fetched", n)
		}
		if n := layersOnDisk(t, s); n != 4 {
			t.Errorf("%d layers on disk", n)
		}
		sound(t, s)
	}
}

// TestTarThatLooksCompressed has a tar whose first name begins as gzip does, so that it would be unpacked as
// something else than it is: the blob is fetched, and no layer is said to be damaged.
func TestTarThatLooksCompressed(t *testing.T) {
	f := blobServer(t)
	app := gz(t, file("\x1f\x8b\x08d/x", "1"))
	f.put(t, "v1", imageOf(t, gz(t, file("base", "1")), app))
	f.put(t, "v2", imageOf(t, gz(t, file("base", "2")), app))
	var log bytes.Buffer
	s := open(t, t.TempDir(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	pull(t, s, f.host+"/app:v1")
	pull(t, s, f.host+"/app:v2")
	if strings.Contains(log.String(), "problem=") {
		t.Errorf("it was said: %s", &log)
	}
	sound(t, s)
}

// TestLayerOverOtherOnes has a layer chosen as one that lies over certain layers, and others come to lie there,
// because what was there was removed meanwhile: it is made for those.
func TestLayerOverOtherOnes(t *testing.T) {
	f := blobServer(t)
	app := gz(t, file("d/implied/x", "1"))
	f.put(t, "v1", imageOf(t, gz(t, folder("d"), file("d/a", "1")), app))
	f.put(t, "v2", imageOf(t, gz(t, folder("d"), file("d/b", "2")), app))
	s := open(t, t.TempDir())
	first, second := pull(t, s, f.host+"/app:v1"), pull(t, s, f.host+"/app:v2")
	c, err := s.pipeline.chooser(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	ref, err := reference.Parse(f.host + "/app:v2")
	if err != nil {
		t.Fatal(err)
	}
	reg, err := s.pipeline.connect(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	c.src = reg
	desc, err := reg.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found, err := c.choose(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer found.done()
	wants := requestsOf(found)
	foreseen := &layerLease{id: first.Layers[1], over: first.Layers[:1], release: func() {}}
	held := []*layerLease{holdStanding(s.pipeline, wants[0]), foreseen}
	ids, err := s.pipeline.finalizeAll(t.Context(), wants, held, reg, nil)
	for _, h := range held {
		h.release()
	}
	if err != nil || !slices.Equal(ids, second.Layers) {
		t.Errorf("the layers are %v, not %v: %v", ids, second.Layers, err)
	}
}
