package image

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/internal/image/reference"
	"berth/test/timeouts"
)

// tag puts a manifest under a tag, as anybody can at a registry of their own.
func (f *frozenServer) tag(t *testing.T, tag string, m ocispec.Manifest) {
	t.Helper()
	m.SchemaVersion, m.MediaType = 2, ocispec.MediaTypeImageManifest
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{digest.FromBytes(raw).Encoded(): raw, tag: []byte(digest.FromBytes(raw))} {
		if err := os.WriteFile(filepath.Join(f.dir, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// manifestOf is the manifest of an image, to be changed.
func manifestOf(t *testing.T, img v1.Image) ocispec.Manifest {
	t.Helper()
	raw, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestThief has a registry that knows what a private image is called, and lacks some or all of it.
func TestThief(t *testing.T) {
	secret := imageOf(t, gz(t, folder("d"), file("d/secret", "1")), gz(t, file("d/implied/secret", "2")))
	private := blobServer(t)
	private.put(t, "v1", secret)
	config, err := secret.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	real := manifestOf(t, secret)
	zero := digest.Digest("sha256:" + strings.Repeat("0", 64))
	zeroes := func(m *ocispec.Manifest) { m.Layers[0].Digest, m.Layers[1].Digest = zero, zero }
	twice := func(m *ocispec.Manifest) { m.Layers[0] = m.Layers[1] }
	last := layerBlob(t, secret, 1)
	for name, c := range map[string]struct {
		edit func(*ocispec.Manifest)
		has  [][]byte
	}{
		"the id":                 {zeroes, nil},
		"the id, any size":       {func(m *ocispec.Manifest) { m.Config.Size = 1 }, nil},
		"the manifest":           {func(*ocispec.Manifest) {}, nil},
		"the config":             {zeroes, [][]byte{config}},
		"the config, the blobs":  {func(*ocispec.Manifest) {}, [][]byte{config}},
		"all but one":            {func(*ocispec.Manifest) {}, [][]byte{config, layerBlob(t, secret, 0)}},
		"all but the first":      {func(*ocispec.Manifest) {}, [][]byte{config, last}},
		"all but the config":     {func(*ocispec.Manifest) {}, [][]byte{layerBlob(t, secret, 0), last}},
		"one blob for the other": {twice, [][]byte{config, last}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			img := pull(t, s, private.host+"/private/app:v1")
			evil := blobServer(t)
			m := real
			m.Layers = slices.Clone(real.Layers)
			c.edit(&m)
			evil.tag(t, "x", m)
			for _, blob := range c.has {
				if err := os.WriteFile(filepath.Join(evil.dir, digest.FromBytes(blob).Encoded()), blob, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if got, err := s.Pull(t.Context(), PullRequest{Reference: evil.host + "/evil/x:x"}); err == nil {
					t.Errorf("it got %+v", got)
				}
			}
			for _, known := range s.List() {
				if known.ID != img.ID || len(known.RepoTags) != 1 || len(known.RepoDigests) != 1 {
					t.Errorf("the store has %v %v", known.RepoTags, known.RepoDigests)
				}
			}
			sound(t, s)
		})
	}
}

func layerBlob(t *testing.T, img v1.Image, n int) []byte {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return layers[n].(packed).blob
}

// TestThiefJoinsNothing has a registry without the blobs name an image that is just being fetched from another one: it
// gets neither the config nor a layer of it.
func TestThiefJoinsNothing(t *testing.T) {
	private, evil := blobServer(t), blobServer(t)
	secret := imageOf(t, gz(t, file("secret", "1")), gz(t, file("d/implied", "2")))
	private.put(t, "v1", secret)
	evil.tag(t, "x", manifestOf(t, secret))
	config := manifestOf(t, secret).Config.Digest.String()
	for name, what := range map[string]string{"config": config, "layers": ""} {
		t.Run(name, func(t *testing.T) {
			held, begun := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p := startProxy(t, private.host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				of := strings.HasSuffix(r.URL.Path, config)
				if strings.Contains(r.URL.Path, "/blobs/") && of == (what == config) {
					once.Do(func() { close(begun) })
					<-held
				}
				next.ServeHTTP(w, r)
			})
			s := open(t, t.TempDir())
			done := make(chan error, 1)
			go func() {
				_, err := s.Pull(context.Background(), PullRequest{Reference: p.host + "/private:v1"})
				done <- err
			}()
			<-begun
			if what == "" { // it knows the config, and now waits for nobody's layers
				raw, err := secret.RawConfigFile()
				if err == nil {
					err = os.WriteFile(filepath.Join(evil.dir, digest.FromBytes(raw).Encoded()), raw, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(20*time.Second))
			_, err := s.Pull(ctx, PullRequest{Reference: evil.host + "/evil/x:x"})
			cancel()
			if kindOf(err) != errdefs.ErrNotFound {
				t.Errorf("it got %v", err)
			}
			close(held)
			if err := <-done; err != nil {
				t.Error(err)
			}
			sound(t, s)
		})
	}
}

// TestRenewLooksAgain has an image change between the moment it was found unchanged and the one it is recorded again.
func TestRenewLooksAgain(t *testing.T) {
	f := blobServer(t)
	f.put(t, "v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	img := pull(t, s, f.host+"/one:v1")
	for name, c := range map[string]struct {
		edit func(*catalog.ImageRecord)
		same bool
	}{
		"nothing": {func(*catalog.ImageRecord) {}, true},
		"a layer": {func(r *catalog.ImageRecord) { r.Layers[0].ID = "b0" }, false},
		"a name":  {func(r *catalog.ImageRecord) { r.Digests = append(r.Digests, "host/other@"+img.ID) }, false},
		"a tag":   {func(r *catalog.ImageRecord) { r.Tags = append(r.Tags, "host/other:v1") }, false},
		"all":     {func(r *catalog.ImageRecord) { r.ID = "sha256:" + strings.Repeat("0", 64) }, false},
	} {
		then := *s.catalog.Record(img.ID)
		then.Layers = slices.Clone(then.Layers)
		c.edit(&then)
		found := &chosen{have: &then, done: func() {}}
		tagged := names{tags: []string{f.host + "/one:v1"}}
		_, same, err := renew(t.Context(), s.pipeline, found, tagged, progress.NewReporter(nil))
		if same != c.same || err != nil {
			t.Errorf("%s has changed: %v, %v", name, same, err)
		}
	}
	sound(t, s)
}

// TestSizesAreCompared has the repository of an image give its parts other sizes.
func TestSizesAreCompared(t *testing.T) {
	f := blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")))
	f.put(t, "v1", img)
	s := open(t, t.TempDir())
	pull(t, s, f.host+"/app:v1")
	next := imageOf(t, gz(t, file("a", "1")), gz(t, file("b", "1")))
	f.put(t, "v2", next)
	m := manifestOf(t, next)
	m.Layers[0].Size++
	f.tag(t, "layer", m)
	m = manifestOf(t, img)
	m.Config.Size--
	f.tag(t, "config", m)
	for _, tag := range []string{"layer", "config"} {
		refused(t, s, PullRequest{Reference: f.host + "/app:" + tag}, errdefs.ErrDataLoss, "promised")
	}
}

// TestEachRepositoryProves pulls an image from repositories that have not served it: each fetches what it has, once,
// and nothing is unpacked again.
func TestEachRepositoryProves(t *testing.T) {
	f := blobServer(t)
	base, finalized := gz(t, folder("d"), file("d/a", "1")), gz(t, file("d/implied/x", "1"))
	f.put(t, "v1", imageOf(t, base, finalized, zst(t, file("b", "1"))))
	root := t.TempDir()
	s := open(t, root)
	first := pull(t, s, f.host+"/one:v1")
	if n := f.blobs(); n != 4 {
		t.Errorf("the first asked for %d blobs", n)
	}
	const callers = 8
	var wg sync.WaitGroup
	var mu sync.Mutex // guards phases
	phases := map[string]int{}
	for range callers {
		wg.Go(func() {
			two := f.host + "/two:v1"
			img, err := s.Pull(context.Background(), PullRequest{Reference: two, Progress: func(p progress.Event) {
				mu.Lock()
				defer mu.Unlock()
				phases[p.Phase]++
			}})
			if err != nil || !slices.Equal(img.Layers, first.Layers) {
				t.Errorf("got %v, %v", img.Layers, err)
			}
		})
	}
	wg.Wait()
	if n := f.blobs(); n != 4 {
		t.Errorf("%d callers of another repository asked for %d blobs", callers, n)
	}
	if phases[progress.Proving] == 0 || phases[progress.Downloading] != 0 {
		t.Errorf("it was said to be %v", phases)
	}
	pull(t, s, f.host+"/two:v1")
	if got := f.take(); got != "HEAD manifests" {
		t.Errorf("again it asked %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, root)
	f.put(t, "v2", imageOf(t, base, finalized, gz(t, file("c", "1"))))
	pull(t, s, f.host+"/two:v2")
	if n := f.blobs(); n != 2 {
		t.Errorf("the next image of a repository asked for %d blobs, not for what is new", n)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/two/nested:v2"}); err != nil || f.blobs() != 4 {
		t.Errorf("what a repository has proven counts for one below it: %v", err)
	}
	sound(t, s)
}

// TestProofOfTheMomentBefore starts to prove a layer when another pull has just done so: it is not fetched again.
func TestProofOfTheMomentBefore(t *testing.T) {
	f := blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")))
	f.put(t, "v1", img)
	s := open(t, t.TempDir())
	name := f.host + "/one:v1"
	pulled := pull(t, s, name)
	f.take()
	ref, err := reference.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.pipeline.connect(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := layerRequest{desc: manifestOf(t, img).Layers[0], diffID: s.catalog.Record(pulled.ID).Layers[0].DiffID}
	if err := fetchProof(t.Context(), s.pipeline, w, src, &progress.Listeners{}); err != nil || f.blobs() != 0 {
		t.Errorf("what was proven before the work began is fetched: %v", err)
	}
}

// TestPossessionByRegistry has one proof count for all repositories of a host, from a reload on.
func TestPossessionByRegistry(t *testing.T) {
	f, other := blobServer(t), blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")), gz(t, file("d/implied", "1")))
	f.put(t, "v1", img)
	other.put(t, "v1", img)
	root := t.TempDir()
	s := open(t, root)
	pull(t, s, f.host+"/one:v1")
	f.take()
	cfg := standard(root)
	cfg.Possession = PossessionRegistry
	if err := s.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	pull(t, s, f.host+"/two:v1")
	if n := f.blobs(); n != 0 {
		t.Errorf("of the same host it asked for %d blobs", n)
	}
	pull(t, s, other.host+"/one:v1")
	if n := other.blobs(); n != 3 {
		t.Errorf("of another host it asked for %d blobs", n)
	}
	sound(t, s)
}

// TestProofsOutliveAFailedPull fails a pull behind its first layer: the next one, also of another daemon, need not
// fetch that again, unless it is from another repository.
func TestProofsOutliveAFailedPull(t *testing.T) {
	f := blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")), gz(t, file("b", "1")))
	f.put(t, "v1", img)
	second := digest.FromBytes(layerBlob(t, img, 1)).String()
	var mu sync.Mutex // guards broken
	broken := true
	f.deny = func(r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		return broken && strings.HasSuffix(r.URL.Path, second)
	}
	root := t.TempDir()
	s := open(t, root, func(c *Config) { c.MaxPullLayers = 1 })
	if _, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/one:v1"}); kindOf(err) != errdefs.ErrNotFound {
		t.Errorf("without the second layer: %v", err)
	}
	if n := layersOnDisk(t, s); n != 1 {
		t.Fatalf("%d layers after the pull that failed", n)
	}
	_ = s.Close()
	s = open(t, root)
	mu.Lock()
	broken = false
	mu.Unlock()
	f.take()
	pull(t, s, f.host+"/one:v1")
	if n := f.blobs(); n != 2 {
		t.Errorf("it asked for %d blobs, not for config and second layer", n)
	}
	pull(t, s, f.host+"/two:v1")
	if n := f.blobs(); n != 3 {
		t.Errorf("another repository was asked for %d blobs", n)
	}
}

// TestProofsFollowNames moves a tag away and removes images: a repository has proven what an image with a name of its
// own has, and nothing else is believed.
func TestProofsFollowNames(t *testing.T) {
	f := blobServer(t)
	base := gz(t, file("base", "1"))
	f.put(t, "v1", imageOf(t, base, gz(t, file("a", "1"))))
	root := t.TempDir()
	s := open(t, root)
	pull(t, s, f.host+"/one:v1")
	pull(t, s, f.host+"/two:v1")
	f.put(t, "v1", imageOf(t, base, gz(t, file("a", "2"))))
	f.take()
	pull(t, s, f.host+"/one:v1")
	if n := f.blobs(); n != 2 {
		t.Errorf("with a tag that moved it asked for %d blobs", n)
	}
	_ = s.Close()
	s = open(t, root)
	for _, img := range s.List() { // two has nothing left, but what the layer's own record says
		if slices.ContainsFunc(img.RepoDigests, func(d string) bool { return strings.HasPrefix(d, f.host+"/two@") }) {
			if err := s.Remove(t.Context(), img.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = s.Close()
	s = open(t, root)
	pull(t, s, f.host+"/two:v1")
	if n := f.blobs(); n != 3 {
		t.Errorf("a repository whose image is gone was asked for %d blobs", n)
	}
	sound(t, s)
}

// TestImportProvesItsNames brings an image as an archive: the repositories that its names are of need not serve it.
func TestImportProvesItsNames(t *testing.T) {
	f := blobServer(t)
	built := imageOf(t, gz(t, folder("d"), file("d/a", "1")), gz(t, file("d/implied/x", "1")))
	f.put(t, "v1", built)
	for name, data := range map[string][]byte{
		"the same blobs": ociTar(t, map[string]v1.Image{f.host + "/one:v1": built}),
		"packed otherwise": dockerTar(t, map[string]v1.Image{f.host + "/one:v1": imageOf(t,
			plainLayer(t, folder("d"), file("d/a", "1")), plainLayer(t, file("d/implied/x", "1")))}),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			if _, err := s.Import(t.Context(), strings.NewReader(string(data)), nil); err != nil {
				t.Fatal(err)
			}
			f.take()
			img := pull(t, s, f.host+"/one:v1")
			if n := f.blobs(); n != 0 || len(img.RepoDigests) != 1 {
				t.Errorf("it asked for %d blobs, and is %v", n, img.RepoDigests)
			}
			pull(t, s, f.host+"/one:v1")
			if got := f.take(); got != "HEAD manifests" {
				t.Errorf("again it asked %s", got)
			}
			again := pull(t, s, f.host+"/two:v1")
			if n := f.blobs(); n != 3 || !slices.Equal(again.Layers, img.Layers) {
				t.Errorf("another repository was asked for %d blobs, and has %v, not %v", n, again.Layers, img.Layers)
			}
			sound(t, s)
		})
	}
}

// TestWrongCredentialsBesideRightOnes has two tenants want the same private image at once: who may not have it fails,
// while the other's fetch goes on and a moment after it.
func TestWrongCredentialsBesideRightOnes(t *testing.T) {
	f := blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")))
	f.put(t, "v1", img)
	blob := digest.FromBytes(layerBlob(t, img, 0)).String()
	held, begun := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := startProxy(t, f.host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if user, password, ok := r.BasicAuth(); !ok || user+":"+password != "me:right" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasSuffix(r.URL.Path, blob) {
			once.Do(func() { close(begun) })
			<-held
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	wrong := func() {
		t.Helper()
		for _, ref := range []string{p.host + "/private:v1", p.host + "/other:v1"} {
			for _, auth := range []*Auth{nil, {Username: "me", Password: "wrong"}} {
				if got, err := s.Pull(t.Context(), PullRequest{Reference: ref, Auth: auth}); err == nil {
					t.Errorf("%s: got %v", ref, got.RepoTags)
				}
			}
		}
	}
	done := make(chan error, 1)
	go func() {
		right := &Auth{Username: "me", Password: "right"}
		_, err := s.Pull(context.Background(), PullRequest{Reference: p.host + "/private:v1", Auth: right})
		done <- err
	}()
	<-begun
	wrong()
	close(held)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wrong()
}

func TestProofsAreFew(t *testing.T) {
	var p proofs
	one := digest.FromString("one")
	for n := range 3 * maxProvers {
		p.note(one, "host/"+strconv.Itoa(n))
		p.note(one, "host/"+strconv.Itoa(n))
	}
	if all := p.of(one); len(all) != maxProvers || !p.has(origin{name: "host/" + strconv.Itoa(3*maxProvers-1)}, one) {
		t.Errorf("kept %v", all)
	}
	for n := range maxProvenBlobs + 10 {
		p.note(digest.FromString(strconv.Itoa(n)), "host/a")
	}
	if n := len(p.byBlob); n != maxProvenBlobs {
		t.Errorf("%d blobs are remembered", n)
	}
}

func TestOriginCovers(t *testing.T) {
	for name, c := range map[string]struct {
		o    origin
		want bool
	}{
		"host/a:v1": {origin{name: "host/a"}, true}, "host/a@sha256:0": {origin{name: "host/a"}, true},
		"host/a": {origin{name: "host/a"}, true}, "host:5000/a": {origin{name: "host:5000/a"}, true},
		"host:5000/a:v1": {origin{name: "host:5000/a"}, true}, "host/a/b:v1": {origin{name: "host/a"}, false},
		"host/ab:v1": {origin{name: "host/a"}, false}, "host/b:v1": {origin{"host", true}, true},
		"host:5000/b:v1": {origin{"host", true}, false}, "hostile/b:v1": {origin{"host", true}, false},
		"host/layer": {origin{name: "layer b1"}, false},
	} {
		if got := c.o.covers(name); got != c.want {
			t.Errorf("%+v covers %s: %v", c.o, name, got)
		}
	}
}
