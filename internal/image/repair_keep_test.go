package image

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image/catalog"
)

// damageLayer changes the file a of the layer at place n of an image.
func damageLayer(t *testing.T, s *Store, img Image, n int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.disk.LayerFS(img.Layers[n]), "a"), []byte("broken"), 0); err != nil {
		t.Fatal(err)
	}
}

// repairs checks a store, and wants as many layers with findings as have been damaged, all repaired or none, for a
// reason.
func repairs(t *testing.T, s *Store, layers int, repaired bool, why string) {
	t.Helper()
	seen := map[string]struct{}{}
	err := s.Check(t.Context(), true, func(f Finding) {
		seen[f.Layer] = struct{}{}
		if f.Repaired != repaired || !strings.Contains(f.Problem, why) {
			t.Errorf("wanted repaired %v, %q: %+v", repaired, why, f)
		}
	})
	if err != nil || len(seen) != layers {
		t.Errorf("findings on %d layers, wanted %d; %v", len(seen), layers, err)
	}
}

// asides are the trees that a store has put aside.
func asides(t *testing.T, s *Store) int {
	t.Helper()
	entries, err := os.ReadDir(s.disk.Path(catalog.AsideDir))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return len(entries)
}

// TestRepairFetchesFirst has the registry look at the store while it is asked for the layer: the image is as usable
// as before, and a container that starts then keeps its tree.
func TestRepairFetchesFirst(t *testing.T) {
	host := startRegistry(t, "")
	var s *Store
	var img Image
	var repairing atomic.Bool
	looked := 0
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if repairing.Load() && strings.Contains(r.URL.Path, "/blobs/") {
			looked++
			_, release, err := s.Use(img.ID)
			if err != nil || content(t, s, img, "a") != "broken" || content(t, s, img, "b") != "below" {
				t.Errorf("while the layer is fetched: %v, %q", err, content(t, s, img, "a"))
			}
			if err == nil {
				t.Cleanup(release)
			}
		}
		next.ServeHTTP(w, r)
	})
	push(t, host+"/a:v1", imageOf(t, gz(t, file("b", "below")), gz(t, file("a", "hello"))))
	s = open(t, t.TempDir())
	img = pull(t, s, p.host+"/a:v1")
	durable(t, s)
	damageLayer(t, s, img, 1)
	repairing.Store(true)
	repairs(t, s, 1, true, "")
	if got := content(t, s, img, "a"); got != "hello" || looked == 0 {
		t.Errorf("after the repair a holds %q; the registry looked %d times", got, looked)
	}
	if err := s.Sweep(t.Context()); err != nil || asides(t, s) != 1 {
		t.Errorf("%d trees are kept for a container that started, %v", asides(t, s), err)
	}
	sound(t, s)
}

// TestRepairUnderAContainer replaces a layer that is mounted: the mount keeps its tree, also over a restart, until the
// container is gone.
func TestRepairUnderAContainer(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("b", "below")), gz(t, file("a", "hello"))))
	root := t.TempDir()
	s := open(t, root)
	img := pull(t, s, host+"/a:v1")
	durable(t, s)
	damageLayer(t, s, img, 1)
	at := t.TempDir()
	lower := "lowerdir=" + strings.Join(s.LayerDirs(img), ":")
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, lower); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	runs := func(c *Config) {
		c.InUse = func() (map[string]struct{}, bool) {
			used := map[string]struct{}{}
			for _, id := range img.Layers {
				used[id] = struct{}{}
			}
			return used, true
		}
	}
	_ = s.Close()
	s = open(t, root, runs)
	repairs(t, s, 1, true, "")
	_ = s.Close()
	s = open(t, root, runs)
	if err := s.Sweep(t.Context()); err != nil || asides(t, s) != 1 {
		t.Errorf("%d trees are kept for a container that runs, %v", asides(t, s), err)
	}
	for path, want := range map[string]string{"a": "broken", "b": "below"} {
		if got, err := os.ReadFile(filepath.Join(at, path)); err != nil || string(got) != want {
			t.Errorf("the container reads %q in %s, %v", got, path, err)
		}
	}
	if got := content(t, s, img, "a"); got != "hello" {
		t.Errorf("the next container reads %q", got)
	}
	_ = s.Close()
	s = open(t, root)
	if err := s.Sweep(t.Context()); err != nil || asides(t, s) != 0 {
		t.Errorf("%d trees are left when the container is gone, %v", asides(t, s), err)
	}
	sound(t, s)
}

// TestRepairKeepsWhatItCannotFetch damages an image that was imported, and one of which the registry wants credentials.
func TestRepairKeepsWhatItCannotFetch(t *testing.T) {
	host := startRegistry(t, "")
	var private atomic.Bool
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if private.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "private"))))
	s := open(t, t.TempDir())
	imgs := []Image{pull(t, s, p.host+"/a:v1")}
	private.Store(true)
	archive := ociTar(t, map[string]v1.Image{"one:v1": imageOf(t, gz(t, file("a", "imported")))})
	imported, err := s.Import(t.Context(), bytes.NewReader(archive), nil)
	if err != nil {
		t.Fatal(err)
	}
	imgs = append(imgs, imported...)
	durable(t, s)
	for _, img := range imgs {
		damageLayer(t, s, img, 0)
	}
	repairs(t, s, 2, false, "; not repaired: it stays as it is")
	for _, img := range imgs {
		_, release, err := s.Use(img.ID)
		if err != nil {
			t.Errorf("an image that could not be repaired cannot be used: %v", err)
			continue
		}
		release()
		if got := content(t, s, img, "a"); got != "broken" {
			t.Errorf("a holds %q", got)
		}
	}
	nothingInFlight(t, s)
	private.Store(false)
	if err := s.Remove(t.Context(), imgs[1].ID); err != nil {
		t.Error(err)
	}
	repairs(t, s, 1, true, "")
	sound(t, s)
}

// TestRepairFinalizesOverSoundLayers damages a layer that was finalized, and the one below it that it takes after.
func TestRepairFinalizesOverSoundLayers(t *testing.T) {
	host := startRegistry(t, "")
	var lost atomic.Bool
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if lost.Load() && strings.Contains(r.URL.Path, "/blobs/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "base"), folder("d")), gz(t, file("d/x", "1"), file("a", "top"))))
	s := open(t, t.TempDir())
	img := pull(t, s, p.host+"/a:v1")
	durable(t, s)
	if s.catalog.Snapshot().Layer(img.Layers[1]).Chain == "" {
		t.Fatal("the layer was not finalized")
	}
	for n := range img.Layers {
		damageLayer(t, s, img, n)
	}
	if got := (&catalog.Checker{Catalog: s.catalog}).LowestFirst(); !slices.Equal(got, img.Layers) {
		t.Errorf("checked in the order %v, wanted %v", got, img.Layers)
	}
	lost.Store(true)
	var problems []string
	if err := s.Check(t.Context(), true, func(f Finding) { problems = append(problems, f.Problem) }); err != nil {
		t.Error(err)
	}
	if text := strings.Join(problems, "\n"); !strings.Contains(text, "layer "+img.Layers[0]+" below it is damaged") {
		t.Errorf("finalized over a damaged layer: %s", text)
	}
	lost.Store(false)
	repairs(t, s, 2, true, "")
	sound(t, s)
}

// TestRepairAsksTheVerifier refuses what a repair would fetch.
func TestRepairAsksTheVerifier(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "hello"))))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/a:v1")
	durable(t, s)
	damageLayer(t, s, img, 0)
	cfg := s.pipeline.settings().Config
	cfg.Verifier = refuser{}
	if err := s.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	repairs(t, s, 1, false, "refused by a test")
}

// refuser is a verifier that accepts nothing.
type refuser struct{}

func (refuser) Verify(context.Context, Question) error { return errors.New("refused by a test") }

func (r refuser) Confirm(ctx context.Context, q Question) error { return r.Verify(ctx, q) }
