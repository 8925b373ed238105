package image

import (
	"archive/tar"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/test/timeouts"
)

func open(t testing.TB, root string, change ...func(*Config)) *Store {
	t.Helper()
	cfg := standard(root)
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func pull(t testing.TB, s *Store, ref string) Image {
	t.Helper()
	img, err := s.Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// sound fails the test when the store's own check finds anything, or something in flight is left.
func sound(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Check(context.Background(), false, func(f Finding) { t.Errorf("check finds %+v", f) }); err != nil {
		t.Error(err)
	}
	nothingInFlight(t, s)
}

func nothingInFlight(t testing.TB, s *Store) {
	t.Helper()
	// A flight that nobody waits for ends a moment after its last caller, and a round of the syncer when the disk has all.
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(20 * time.Millisecond) {
		left, err := os.ReadDir(s.disk.Path(catalog.IngestDir))
		if err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("left in ingest: %v, %v", left, err)
			return
		}
	}
}

func layersOnDisk(t testing.TB, s *Store) int {
	t.Helper()
	entries, err := os.ReadDir(s.disk.Path(catalog.LayersDir))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func content(t testing.TB, s *Store, img Image, path string) string {
	t.Helper()
	for _, d := range s.LayerDirs(img) {
		if b, err := os.ReadFile(filepath.Join(d, path)); err == nil {
			return string(b)
		}
	}
	return ""
}

func TestPullForms(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	dockerLayer := gz(t, file("hello", "docker"))
	dockerLayer.kind = types.DockerLayer
	forms := map[string]v1.Image{
		"gzip":   imageOf(t, gz(t, file("base", "1")), gz(t, file("hello", "gzip"))),
		"zstd":   imageOf(t, zst(t, file("hello", "zstd"))),
		"plain":  imageOf(t, plainLayer(t, file("hello", "plain"))),
		"docker": dockerImage(t, dockerLayer),
		"mixed":  imageOf(t, gz(t, folder("d")), zst(t, file("d/x", "1")), plainLayer(t, file("hello", "mixed"))),
	}
	s := open(t, t.TempDir())
	for form, built := range forms {
		ref := host + "/forms/" + form + ":v1"
		push(t, ref, built)
		img := pull(t, s, ref)
		id, _ := built.ConfigName()
		manifest, _ := built.Digest()
		if img.ID != id.String() || len(img.RepoTags) != 1 || img.RepoTags[0] != ref || img.RepoDigests[0] != host+"/forms/"+
			form+"@"+manifest.String() {
			t.Errorf("%s: %+v", form, img)
		}
		if got := content(t, s, img, "hello"); got != form {
			t.Errorf("%s: hello holds %q", form, got)
		}
		if img.Size == 0 {
			t.Errorf("%s: size is 0", form)
		}
		again := pull(t, s, host+"/forms/"+form+"@"+manifest.String())
		if again.ID != img.ID || len(again.RepoTags) != 1 {
			t.Errorf("%s by digest: %+v", form, again)
		}
	}
	sound(t, s)
	if bytes, inodes, _ := s.Usage(); bytes == 0 || inodes == 0 {
		t.Errorf("usage is %d, %d", bytes, inodes)
	}
}

func TestPullIndex(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	add := func(text string, p v1.Platform) mutate.IndexAddendum {
		img := imageOf(t, gz(t, file("hello", text)))
		cf, _ := img.ConfigFile()
		cf = cf.DeepCopy()
		cf.OS, cf.Architecture, cf.Variant = p.OS, p.Architecture, p.Variant
		img, err := mutate.ConfigFile(img, cf)
		if err != nil {
			t.Fatal(err)
		}
		return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}}
	}
	inner := mutate.AppendManifests(empty.Index, add("v6", v1.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}),
		add("v7", v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}))
	idx := mutate.AppendManifests(empty.Index,
		add("windows", v1.Platform{OS: "windows", Architecture: "amd64"}),
		add("amd64", v1.Platform{OS: "linux", Architecture: "amd64"}),
		mutate.IndexAddendum{Add: inner})
	ref := host + "/multi:v1"
	push(t, ref, idx)
	s := open(t, t.TempDir())
	for platform, want := range map[string]string{"": "amd64", "linux/amd64": "amd64"} {
		img, err := s.Pull(t.Context(), PullRequest{Reference: ref, Platform: platform})
		if err != nil {
			t.Fatal(err)
		}
		if got := content(t, s, img, "hello"); got != want {
			t.Errorf("platform %q brought %q", platform, got)
		}
		d, _ := idx.Digest()
		if img.RepoDigests[0] != host+"/multi@"+d.String() {
			t.Errorf("repo digest %v is not the index's", img.RepoDigests)
		}
	}
	_, err := s.Pull(t.Context(), PullRequest{Reference: ref, Platform: "linux/s390x"})
	if kindOf(err) != errdefs.ErrNotFound {
		t.Errorf("missing platform: %v", err)
	}
	_, err = s.Pull(t.Context(), PullRequest{Reference: ref, Platform: "a/b/c/d/e"})
	if kindOf(err) != errdefs.ErrInvalidArgument {
		t.Errorf("bad platform: %v", err)
	}
	if len(s.List()) != 1 {
		t.Errorf("images: %v", s.List())
	}
	sound(t, s)
}

func TestFinalizedLayers(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	base1 := gz(t, entry{Header: tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 5}}, file("d/a", "1"))
	base2 := gz(t, folder("real"), entry{Header: tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "real"}})
	top := gz(t, file("d/x", "x")) // d is implied
	push(t, host+"/one:v1", imageOf(t, base1, top))
	push(t, host+"/two:v1", imageOf(t, base2, top))
	push(t, host+"/alone:v1", imageOf(t, top))
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	for _, name := range []string{"one", "two", "alone", "one", "two"} {
		wg.Go(func() { _, _ = s.Pull(context.Background(), PullRequest{Reference: host + "/" + name + ":v1"}) })
	}
	wg.Wait()
	one, two, alone := pull(t, s, host+"/one:v1"), pull(t, s, host+"/two:v1"), pull(t, s, host+"/alone:v1")
	if st, err := os.Stat(s.LayerDirs(one)[0] + "/d"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("over the first base: %v %v", st, err)
	}
	if _, err := os.Stat(s.LayerDirs(two)[0] + "/real/x"); err != nil {
		t.Errorf("over the second base: %v", err)
	}
	if st, err := os.Stat(s.LayerDirs(alone)[0] + "/d"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("alone: %v %v", st, err)
	}
	if n := layersOnDisk(t, s); n != 5 {
		t.Errorf("%d layers on disk, want 5", n)
	}
	sound(t, s)
}

func TestConcurrentPullsFetchOnce(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	layers := []v1.Layer{}
	for _, n := range []string{"a", "b", "c"} {
		layers = append(layers, gz(t, file(n, strings.Repeat(n, 1<<20))))
	}
	push(t, host+"/same:v1", imageOf(t, layers...))
	push(t, host+"/other:v1", imageOf(t, layers[0], gz(t, file("d", "d"))))
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			time.Sleep(100 * time.Millisecond) // let the others arrive
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			ref := p.host + "/same:v1"
			if i%4 == 3 {
				ref = p.host + "/other:v1"
			}
			_, errs[i] = s.Pull(context.Background(), PullRequest{Reference: ref, Progress: func(progress.Event) {}})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	shared, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := p.blobGets(); len(got) != 6 {
		t.Errorf("fetched %v, want 4 layers and 2 configs", got)
	}
	for d, n := range p.blobGets() {
		if n != 1 && (n != 2 || d != shared.String()) { // each repository proves that it has what both share
			t.Errorf("%s fetched %d times", d, n)
		}
	}
	sound(t, s)
}

func TestProgress(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/p:v1", imageOf(t, gz(t, file("a", "1")), gz(t, file("b", "2"))))
	s := open(t, t.TempDir())
	last := map[string]progress.Event{}
	_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/p:v1", Progress: func(p progress.Event) {
		last[p.Layer.String()] = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(last) != 3 {
		t.Fatalf("heard of %v", last)
	}
	for l, p := range last {
		if l != "" && (p.Phase != progress.Done || p.Done != p.Total || p.Total == 0) {
			t.Errorf("last of %s is %+v", l, p)
		}
	}
}

// TestShortIDs wants the beginning of an id to name an image where people type it, and nothing that could be tried out:
// a pod's specification may say sha256: and a few digits.
func TestShortIDs(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/a:v1")
	hex := strings.TrimPrefix(img.ID, "sha256:")
	for ref, want := range map[string]struct{ found, used bool }{
		img.ID: {true, true}, hex: {true, true}, host + "/a:v1": {true, true}, hex[:12]: {true, false},
		hex[:63]: {true, false},
		hex[:11]: {}, hex[:3]: {}, "sha256:" + hex[:3]: {}, "sha256:" + hex[:12]: {}, "sha256:" + hex[:63]: {},
	} {
		if _, ok := s.Get(ref); ok != want.found {
			t.Errorf("%s is found: %v", ref, ok)
		}
		_, release, err := s.Use(ref)
		if err == nil {
			release()
		}
		if (err == nil) != want.used || err != nil && kindOf(err) != errdefs.ErrNotFound {
			t.Errorf("%s is used: %v", ref, err)
		}
	}
	for _, ref := range []string{"sha256:" + hex[:12], hex[:11]} {
		if err := s.Remove(t.Context(), ref); err != nil || len(s.List()) != 1 {
			t.Errorf("%s removes: %v", ref, err)
		}
	}
	if err := s.Remove(t.Context(), hex[:12]); err != nil || len(s.List()) != 0 {
		t.Errorf("the beginning of the id does not remove it: %v", err)
	}
}

func TestNamesMoveAndRemove(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	shared := gz(t, file("shared", "s"))
	push(t, host+"/app:v1", imageOf(t, shared, gz(t, file("v", "1"))))
	s := open(t, t.TempDir())
	old := pull(t, s, host+"/app:v1")
	push(t, host+"/app:v1", imageOf(t, shared, gz(t, file("v", "2"))))
	now := pull(t, s, host+"/app:v1")
	push(t, host+"/app:v2", imageOf(t, shared, gz(t, file("v", "2"))))
	now = pull(t, s, host+"/app:v2")
	if got, ok := s.Get(old.ID); !ok || len(got.RepoTags) != 0 || len(got.RepoDigests) != 1 {
		t.Errorf("the old image is %+v", got)
	}
	if len(now.RepoTags) != 2 {
		t.Errorf("the new image is %+v", now)
	}
	hex := strings.TrimPrefix(now.ID, "sha256:")
	for _, ref := range []string{host + "/app:v1", host + "/app:v2", now.ID, hex, hex[:12], now.RepoDigests[0]} {
		if got, ok := s.Get(ref); !ok || got.ID != now.ID {
			t.Errorf("get %s: %v %v", ref, ok, got.ID)
		}
	}
	for _, ref := range []string{host + "/app", "zz", "", "sha256:", hex[:2], host + "/app@" + old.ID, "Not/Valid"} {
		if got, ok := s.Get(ref); ok {
			t.Errorf("get %q found %s", ref, got.ID)
		}
	}
	again := open(t, s.disk.Root) // a second reader of the same files sees the same
	if a, b := s.List(), again.List(); len(a) != 2 || len(b) != 2 || a[0].ID != b[0].ID ||
		len(a[0].RepoTags) != len(b[0].RepoTags) {
		t.Errorf("%v and %v", a, b)
	}
	if err := s.Remove(t.Context(), host+"/app:v1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Get(host + "/app:v2"); ok || layersOnDisk(t, s) != 2 {
		t.Errorf("v2 is there: %v; %d layers", ok, layersOnDisk(t, s))
	}
	for _, ref := range []string{host + "/app:v1", old.ID, old.ID, "never/was"} {
		if err := s.Remove(t.Context(), ref); err != nil {
			t.Errorf("remove %s: %v", ref, err)
		}
	}
	if n := layersOnDisk(t, s); n != 0 {
		t.Errorf("%d layers are left", n)
	}
	if bytes, inodes, _ := s.Usage(); bytes != 0 || inodes != 0 {
		t.Errorf("usage of nothing is %d, %d", bytes, inodes)
	}
	sound(t, s)
}

// TestSweepWithoutTheWholeList keeps what was there when the store was opened, as long as nobody can tell all layers
// that containers use.
func TestSweepWithoutTheWholeList(t *testing.T) {
	host, root, whole := startRegistry(t, ""), t.TempDir(), false
	push(t, host+"/old:v1", imageOf(t, gz(t, file("a", "1"))))
	push(t, host+"/new:v1", imageOf(t, gz(t, file("b", "2"))))
	old := open(t, root)
	pull(t, old, host+"/old:v1")
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, root, func(c *Config) { c.InUse = func() (map[string]struct{}, bool) { return nil, whole } })
	pull(t, s, host+"/new:v1")
	for _, name := range []string{"/old:v1", "/new:v1"} {
		if err := s.Remove(t.Context(), host+name); err != nil {
			t.Fatal(err)
		}
	}
	if n := layersOnDisk(t, s); n != 1 {
		t.Errorf("%d layers are kept, not the one that a container may use", n)
	}
	whole = true
	if err := s.Sweep(t.Context()); err != nil || layersOnDisk(t, s) != 0 {
		t.Errorf("%d layers are kept for nobody: %v", layersOnDisk(t, s), err)
	}
}

func TestSweepKeepsWhatIsUsed(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	used := map[string]struct{}{}
	var mu sync.Mutex
	s := open(t, t.TempDir(), func(c *Config) {
		c.InUse = func() (map[string]struct{}, bool) {
			mu.Lock()
			defer mu.Unlock()
			out := map[string]struct{}{}
			for k := range used {
				out[k] = struct{}{}
			}
			return out, true
		}
	})
	img := pull(t, s, host+"/a:v1")
	_, release, err := s.Use(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	remove := func() {
		t.Helper()
		if err := errors.Join(s.Remove(t.Context(), img.ID), s.Sweep(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if remove(); layersOnDisk(t, s) != 1 {
		t.Fatal("a held layer was swept")
	}
	mu.Lock()
	used[img.Layers[0]] = struct{}{}
	mu.Unlock()
	release()
	release()
	if remove(); layersOnDisk(t, s) != 1 {
		t.Fatal("a layer of a container was swept")
	}
	mu.Lock()
	clear(used)
	mu.Unlock()
	if remove(); layersOnDisk(t, s) != 0 {
		t.Fatal("an unused layer stayed")
	}
	if _, _, err := s.Use(img.ID); kindOf(err) != errdefs.ErrNotFound {
		t.Errorf("use of what is gone: %v", err)
	}
	// A hold that began after the round is kept although the containers were asked before.
	pull(t, s, host+"/a:v1")
	s.sweeper.InUse = func() (map[string]struct{}, bool) {
		_, release, err := s.Use(img.ID)
		if err == nil {
			release()
		}
		_, _ = catalog.Forget(s.catalog, img.ID)
		return nil, true
	}
	if err := s.Sweep(t.Context()); err != nil || layersOnDisk(t, s) != 1 {
		t.Errorf("a layer that became a container's during the sweep was swept: %v", err)
	}
}

func TestOpenCollectsLeftovers(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	root := t.TempDir()
	s := open(t, root)
	img := pull(t, s, host+"/a:v1")
	_ = s.Close()
	for _, d := range []string{"ingest/7-x/fs/deep", "ingest/8-y"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.WriteFile(filepath.Join(root, "records", ".tmp-z"), nil, 0o600)
	_ = os.WriteFile(filepath.Join(root, "records", strings.Repeat("0", 64)), []byte("garbage"), 0o600)
	_ = os.MkdirAll(filepath.Join(root, "layers", "d"+strings.Repeat("1", 64), "fs"), 0o700)
	s = open(t, root)
	nothingInFlight(t, s)
	if got, ok := s.Get(host + "/a:v1"); !ok || got.ID != img.ID {
		t.Error("one bad record stopped another")
	}
	if len(s.Problems()) != 2 {
		t.Errorf("problems: %+v", s.Problems())
	}
	if err := s.Check(t.Context(), true, func(f Finding) {
		if !f.Repaired {
			t.Errorf("not repaired: %+v", f)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(s.Problems()) != 0 {
		t.Errorf("problems after repair: %+v", s.Problems())
	}
	sound(t, s)
}

func TestNotDurableIsDroppedByAnotherBoot(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	push(t, host+"/b:v1", imageOf(t, gz(t, file("b", "1"))))
	root := t.TempDir()
	boot := func(id string) func(*Config) { return func(c *Config) { c.BootID = id } }
	s := open(t, root, boot("one"))
	pull(t, s, host+"/a:v1")
	durable(t, s)
	_ = s.Close() // no syncer any more: what comes now does not become durable
	s2 := open(t, root, boot("one"))
	s2.stop()
	s2.work.Wait()
	s2.ctx = context.Background()
	img := pull(t, s2, host+"/b:v1")
	before := map[string][]byte{}
	for _, path := range []string{s2.disk.RecordPath(img.ID), s2.disk.LayerRecordPath(img.Layers[0])} {
		before[path], _ = os.ReadFile(path)
	}
	same := open(t, root, boot("one"))
	if len(same.List()) != 2 {
		t.Errorf("the same boot sees %d images", len(same.List()))
	}
	_ = same.Close()
	for path, content := range before { // what they were until the other one synced them
		if err := os.WriteFile(path, content, 0o600); err != nil || len(content) == 0 {
			t.Fatalf("%s: %d bytes, %v", path, len(content), err)
		}
	}
	s = open(t, root, boot("two"))
	if got := s.List(); len(got) != 1 || got[0].RepoTags[0] != host+"/a:v1" || layersOnDisk(t, s) != 1 {
		t.Errorf("after another boot: %+v, %d layers", got, layersOnDisk(t, s))
	}
	sound(t, s)
}

func TestCheckAndRepair(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "hello"), file("b", "x"))))
	certs := t.TempDir()
	s := open(t, t.TempDir(), func(c *Config) { c.RegistryConfigDir = certs })
	img := pull(t, s, host+"/a:v1")
	damage := func() {
		path := s.LayerDirs(img)[0] + "/a"
		st, _ := os.Stat(path)
		_ = os.WriteFile(path, []byte("hellp"), 0)
		_ = os.Chtimes(path, st.ModTime(), st.ModTime())
		_ = os.Remove(s.LayerDirs(img)[0] + "/b")
	}
	damage()
	var found []string
	if err := s.Check(t.Context(), false, func(f Finding) { found = append(found, f.Path+" "+f.Problem) }); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(found, "\n"); !strings.Contains(text, "a has other content") ||
		!strings.Contains(text, "b is missing") {
		t.Errorf("found %q", found)
	}
	if err := s.Check(t.Context(), true, func(f Finding) {
		if !f.Repaired {
			t.Errorf("not repaired: %+v", f)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, img, "a"); got != "hello" {
		t.Errorf("after repair a holds %q", got)
	}
	sound(t, s)
	damage()
	push(t, host+"/other:v1", imageOf(t, gz(t, file("c", ""))))
	hosts := filepath.Join(certs, host)
	_ = os.MkdirAll(hosts, 0o700)
	_ = os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte("server = \"http://127.0.0.1:1\"\n"), 0o600)
	if err := s.Check(t.Context(), true, func(f Finding) {
		if f.Repaired {
			t.Errorf("repaired without a registry: %+v", f)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, img, "a"); got != "hellp" {
		t.Errorf("what cannot be fetched was not kept: a holds %q", got)
	}
}

func TestPinned(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	for pattern, want := range map[string]bool{host + "/a:v1": true, host + "/*": true, host + "/b*": false,
		"*/a:v?": true, "busybox": false} {
		s := open(t, t.TempDir(), func(c *Config) { c.Pinned = []string{pattern} })
		if img := pull(t, s, host+"/a:v1"); img.Pinned != want {
			t.Errorf("%s: pinned is %v", pattern, img.Pinned)
		}
	}
}
