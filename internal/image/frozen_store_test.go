package image

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// frozenHost is where the images of a frozen store came from; hosts.toml says where that is today.
const frozenHost = "registry.example.com"

// frozenServer is a registry whose content is a directory: blobs and manifests by their hex, and tags as files with the
// digest of a manifest in them. Every repository has all of it.
type frozenServer struct {
	dir, host string
	deny      func(r *http.Request) bool // answered as if it were not there; may be nil

	mu  sync.Mutex // guards all
	all []string
}

// blobServer is one that has nothing yet.
func blobServer(t *testing.T) *frozenServer {
	t.Helper()
	f, _ := serveFrozen(t, t.TempDir())
	return f
}

// serveFrozen starts a registry and has a store reach it as frozenHost.
func serveFrozen(t *testing.T, dir string) (f *frozenServer, reach func(*Config)) {
	t.Helper()
	f = &frozenServer{dir: dir}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.host = strings.TrimPrefix(srv.URL, "http://")
	certs := t.TempDir()
	host := filepath.Join(certs, frozenHost)
	if err := os.Mkdir(host, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "hosts.toml"), []byte("server = \""+srv.URL+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return f, func(c *Config) { c.RegistryConfigDir = certs }
}

func (f *frozenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	what, file := parts[len(parts)-2], parts[len(parts)-1]
	f.mu.Lock()
	f.all = append(f.all, r.Method+" "+what)
	f.mu.Unlock()
	if tag, err := os.ReadFile(filepath.Join(f.dir, file)); err == nil {
		file = string(tag)
	}
	body, err := os.ReadFile(filepath.Join(f.dir, strings.TrimPrefix(file, "sha256:")))
	if err != nil || f.deny != nil && f.deny(r) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if what == "manifests" {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// take returns what was asked since it was called last.
func (f *frozenServer) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	f.all = nil
	return strings.Join(all, ", ")
}

// blobs is how many blobs were asked for since take was called last.
func (f *frozenServer) blobs() int { return strings.Count(f.take(), "GET blobs") }

// put adds an image under a tag.
func (f *frozenServer) put(t *testing.T, tag string, img v1.Image) {
	t.Helper()
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	all := [][]byte{manifest, config}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		all = append(all, l.(packed).blob)
	}
	for _, b := range all {
		if err := os.WriteFile(filepath.Join(f.dir, digest.FromBytes(b).Encoded()), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.dir, tag), []byte(digest.FromBytes(manifest)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// frozenStore unpacks testdata/frozen/store-v1.tar.gz, a store as the release before layers went by their blobs left
// it, and what its registry serves.
func frozenStore(t *testing.T) (root string, f *frozenServer, reach func(*Config)) {
	t.Helper()
	dir := t.TempDir()
	systemTar(t, "-xzf", "testdata/frozen/store-v1.tar.gz", "-C", dir)
	f, reach = serveFrozen(t, filepath.Join(dir, "registry"))
	return filepath.Join(dir, "store"), f, reach
}

// systemTar runs tar, which keeps what overlay layers consist of.
func systemTar(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-p"}, args...)
	if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}

// TestFreezeStore writes a store of the code that it is compiled with, for the day when a format changes.
func TestFreezeStore(t *testing.T) {
	to := os.Getenv("BERTH_FREEZE_STORE")
	if to == "" {
		t.Skip("BERTH_FREEZE_STORE names no file to write to")
	}
	dir := t.TempDir()
	for _, d := range []string{"store", "registry"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f, reach := serveFrozen(t, filepath.Join(dir, "registry"))
	base, finalized := gz(t, folder("d"), file("d/a", "1")), gz(t, file("d/implied/x", "1"))
	f.put(t, "web", imageOf(t, base, finalized, gz(t, file("web", "1"))))
	f.put(t, "shop", imageOf(t, base, gz(t, file("shop", "1"))))
	f.put(t, "rebased", imageOf(t, gz(t, folder("d"), file("d/b", "2")), finalized))
	f.put(t, "more", imageOf(t, base, finalized, gz(t, file("more", "1"))))
	f.put(t, "loaded", imageOf(t, base, gz(t, file("loaded", "1"))))
	// As docker saves it:
	plain := imageOf(t, plainLayer(t, folder("d"), file("d/a", "1")), plainLayer(t, file("loaded", "1")))
	s := open(t, filepath.Join(dir, "store"), reach, func(c *Config) { c.BootID = "frozen" })
	pull(t, s, frozenHost+"/team/web:web")
	pull(t, s, frozenHost+"/team/shop:shop")
	archive := dockerTar(t, map[string]v1.Image{frozenHost + "/team/loaded:loaded": plain})
	if _, err := s.Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	durable(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	systemTar(t, "-czf", to, "-C", dir, "store", "registry")
}

// TestFrozenStore has a store of the release before layers went by their blobs: nothing of it is fetched, unpacked or
// renamed for the repositories that its images are from, and other repositories prove what they serve.
func TestFrozenStore(t *testing.T) {
	root, f, reach := frozenStore(t)
	s := open(t, root, reach)
	if len(s.Problems()) != 0 || len(s.List()) != 3 {
		t.Fatalf("%d images, problems %v", len(s.List()), s.Problems())
	}
	sound(t, s)
	layers := layersOnDisk(t, s)
	for _, c := range []struct {
		name  string
		asked int // blobs
		more  int // layers
	}{
		{"team/web:web", 0, 0}, {"team/shop:shop", 0, 0},
		{"team/loaded:loaded", 0, 0},     // which root has brought, packed otherwise
		{"team/web:more", 2, 1},          // its config and its topmost layer
		{"team/web:rebased", 2, 2},       // its config and its base; the layer over it is made anew from the old one
		{"stranger/web:web", 4, 0},       // all of it, and nothing is unpacked
		{"stranger/web:more", 2, 0},      // what it has not proven yet
		{"stranger/loaded:loaded", 3, 1}, // its topmost layer is packed otherwise here, and is not used in the end
		{"team/loaded:loaded", 0, 0},
	} {
		before := layersOnDisk(t, s)
		img := pull(t, s, frozenHost+"/"+c.name)
		asked := f.take()
		if n := strings.Count(asked, "GET blobs"); n != c.asked {
			t.Errorf("%s asked for %d blobs, not %d: %s", c.name, n, c.asked, asked)
		}
		if n := layersOnDisk(t, s) - before; n != c.more {
			t.Errorf("%s made %d layers, not %d", c.name, n, c.more)
		}
		for _, id := range img.Layers[:min(len(img.Layers), 1)] {
			if old := strings.HasPrefix(id, "d"); old != (c.name != "team/web:rebased") {
				t.Errorf("%s has the base %s", c.name, id)
			}
		}
		if again := pull(t, s, frozenHost+"/"+c.name); again.ID != img.ID || f.take() != "HEAD manifests" {
			t.Errorf("%s is not unchanged", c.name)
		}
	}
	if layersOnDisk(t, s) <= layers {
		t.Error("nothing was new")
	}
	sound(t, s)
	_ = s.Close()
	s = open(t, root, reach)
	sound(t, s)
	for _, img := range s.List() {
		if err := s.Remove(t.Context(), img.ID); err != nil {
			t.Error(err)
		}
	}
	if n := layersOnDisk(t, s); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

// TestFrozenStoreIsRepaired breaks layers of such a store: they are fetched, and keep their ids. One of them is also
// that of an image that root has brought in another packing, and is made of the tar that both have.
func TestFrozenStoreIsRepaired(t *testing.T) {
	root, _, reach := frozenStore(t)
	s := open(t, root, reach)
	img, _ := s.Get(frozenHost + "/team/web:web")
	for n, path := range []string{"d/a", "d/implied/x"} {
		if err := os.WriteFile(filepath.Join(s.disk.LayerFS(img.Layers[n]), path), []byte("?"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	err := s.Check(t.Context(), true, func(f Finding) {
		if found++; !f.Repaired {
			t.Errorf("%+v", f)
		}
	})
	if err != nil || found == 0 {
		t.Fatalf("%d findings, %v", found, err)
	}
	for name, want := range map[string]string{"web": "1", "loaded": "1"} {
		after, ok := s.Get(frozenHost + "/team/" + name + ":" + name)
		if !ok || after.Layers[0] != img.Layers[0] || content(t, s, after, "d/a") != want {
			t.Errorf("after the repair: %+v", after)
		}
	}
	sound(t, s)
}
