package image

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/image/catalog"
	"berth/internal/image/progress"
	"berth/test/timeouts"
	"berth/test/volume"
)

// asked keeps the method and the last two parts of the path of each request.
type asked struct {
	mu  sync.Mutex // guards all
	all []string
}

func (a *asked) proxy(t *testing.T, host string) string {
	return startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		a.mu.Lock()
		parts := strings.Split(r.URL.Path, "/")
		if name := parts[max(0, len(parts)-2):]; name[0] == "manifests" || name[0] == "blobs" {
			a.all = append(a.all, r.Method+" "+name[0])
		}
		a.mu.Unlock()
		next.ServeHTTP(w, r)
	}).host
}

// take returns what was asked since it was called last.
func (a *asked) take() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return strings.Join(all, ", ")
}

// forPlatform is an image with one file that says what it is for.
func forPlatform(t *testing.T, text string, p v1.Platform) mutate.IndexAddendum {
	t.Helper()
	img := imageOf(t, gz(t, file("hello", text)))
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Variant = p.OS, p.Architecture, p.Variant
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}}
}

// TestUnchangedTagCostsOneHead counts what pulls of a tag ask when nothing has changed, also after the store was opened
// anew: one HEAD, which shows the caller's credentials.
func TestUnchangedTagCostsOneHead(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/lone:v1", imageOf(t, gz(t, file("hello", "lone")), gz(t, file("b", "2"))))
	amd64, arm64 := v1.Platform{OS: "linux", Architecture: "amd64"}, v1.Platform{OS: "linux", Architecture: "arm64"}
	both := mutate.AppendManifests(empty.Index, forPlatform(t, "amd64", amd64), forPlatform(t, "arm64", arm64))
	push(t, host+"/multi:v1", both)
	var a asked
	at, root := a.proxy(t, host), t.TempDir()
	for _, name := range []string{"lone", "multi"} {
		ref, s := at+"/"+name+":v1", open(t, root)
		first := pull(t, s, ref)
		if was := a.take(); !strings.Contains(was, "GET manifests") {
			t.Fatalf("%s: the first pull asked %s", name, was)
		}
		for range 3 {
			var phases []string
			note := func(p progress.Event) { phases = append(phases, p.Phase) }
			again, err := s.Pull(t.Context(), PullRequest{Reference: ref, Progress: note})
			same := again.ID == first.ID && slices.Equal(again.RepoTags, first.RepoTags)
			if err != nil || !same || !slices.Equal(again.RepoDigests, first.RepoDigests) {
				t.Fatalf("%s: again it is %v, %v", name, again, err)
			}
			if got := a.take(); got != "HEAD manifests" {
				t.Errorf("%s: a pull that found nothing new asked %s", name, got)
			}
			if phases[len(phases)-1] != progress.Done || !slices.Contains(phases, progress.Exists) {
				t.Errorf("%s: it was said to be %v", name, phases)
			}
		}
		sound(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, root)
		pull(t, s, ref)
		if got := a.take(); got != "HEAD manifests" {
			t.Errorf("%s: after a restart a pull asked %s", name, got)
		}
		byDigest := pull(t, s, first.RepoDigests[0])
		if got := a.take(); got != "HEAD manifests" || byDigest.ID != first.ID {
			t.Errorf("%s: by digest a pull asked %s", name, got)
		}
		push(t, host+"/"+name+":v2", imageOf(t, gz(t, file("hello", "new"))))
		a.take()
		if got := content(t, s, pull(t, s, at+"/"+name+":v2"), "hello"); got != "new" {
			t.Errorf("%s: another tag brought %q", name, got)
		}
		sound(t, s)
		_ = s.Close()
	}
}

// TestUnchangedForThePlatform pulls one index for two platforms: what is there for one is nothing to the other.
func TestUnchangedForThePlatform(t *testing.T) {
	host := startRegistry(t, "")
	v6 := v1.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}
	v7 := v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}
	push(t, host+"/multi:v1", mutate.AppendManifests(empty.Index, forPlatform(t, "v6", v6), forPlatform(t, "v7", v7)))
	push(t, host+"/lone:v1", forPlatform(t, "v6", v6).Add.(v1.Image))
	var a asked
	at := a.proxy(t, host)
	s := open(t, t.TempDir(), func(c *Config) { c.Platform = "linux/arm/v7" })
	for i, c := range []struct{ platform, want string }{
		{"linux/arm/v6", "v6"}, {"", "v7"}, {"linux/arm/v6", "v6"}, {"", "v7"}, {"linux/arm/v7", "v7"},
	} {
		img, err := s.Pull(t.Context(), PullRequest{Reference: at + "/multi:v1", Platform: c.platform})
		if err != nil {
			t.Fatal(err)
		}
		if got := content(t, s, img, "hello"); got != c.want {
			t.Errorf("%d: the platform %q brought %q", i, c.platform, got)
		}
		if got := a.take(); i > 1 && got != "HEAD manifests" {
			t.Errorf("%d: it asked %s", i, got)
		}
	}
	pull(t, s, at+"/lone:v1")
	if _, err := s.Pull(t.Context(), PullRequest{Reference: at + "/lone:v1", Platform: "linux/s390x"}); err == nil {
		t.Error("an image for arm was had for s390x, because it is there")
	}
	sound(t, s)
}

// TestUnchangedIsVerified asks the verifier about what is there.
func TestUnchangedIsVerified(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/signed:v1", imageOf(t, gz(t, file("a", "1"))))
	j := &judge{}
	s := open(t, t.TempDir(), func(c *Config) { c.Verifier = j })
	pull(t, s, host+"/signed:v1")
	pull(t, s, host+"/signed:v1")
	if len(j.asked) != 2 {
		t.Errorf("it was asked %v", j.asked)
	}
	j.decide(errors.New("revoked"))
	refused(t, s, PullRequest{Reference: host + "/signed:v1"}, crierrors.ErrSignatureValidationFailed, "revoked")
}

// TestUnchangedButIncomplete has a store that lost a layer, and one that knows the image from another repository: both
// fetch.
func TestUnchangedButIncomplete(t *testing.T) {
	host := startRegistry(t, "")
	img := imageOf(t, gz(t, file("a", "1")), gz(t, file("b", "2")))
	push(t, host+"/one:v1", img)
	push(t, host+"/two:v1", img)
	var a asked
	at := a.proxy(t, host)
	s := open(t, t.TempDir())
	got := pull(t, s, at+"/one:v1")
	a.take()
	pull(t, s, at+"/two:v1")
	if was := a.take(); !strings.Contains(was, "GET manifests") {
		t.Errorf("from a repository that has not served it, it asked %s", was)
	}
	loseLayer(t, s, got)
	pull(t, s, at+"/one:v1")
	if was := a.take(); !strings.Contains(was, "GET blobs") {
		t.Errorf("without a layer, it asked %s", was)
	}
}

// loseLayer has an image of two layers lose the upper one.
func loseLayer(t *testing.T, s *Store, img Image) {
	t.Helper()
	rec := *s.catalog.Record(img.ID)
	var err error
	if rec.Config, err = img.RawConfig(); err != nil {
		t.Fatal(err)
	}
	release, _ := s.catalog.Leases.Hold(img.Layers[0])
	defer release()
	if err := s.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Commit(s.catalog, &rec); err != nil {
		t.Fatal(err)
	}
	if layersOnDisk(t, s) != 1 {
		t.Fatalf("%d layers are left", layersOnDisk(t, s))
	}
}

// TestDigestNameLeadsToThePlatform pulls the digest of an index for another platform too, as one does to export it: the
// name leads to the image for the node, before and after a restart. Where there is no such image it leads to the other.
func TestDigestNameLeadsToThePlatform(t *testing.T) {
	host := startRegistry(t, "")
	amd64, arm64 := v1.Platform{OS: "linux", Architecture: "amd64"}, v1.Platform{OS: "linux", Architecture: "arm64"}
	both := mutate.AppendManifests(empty.Index, forPlatform(t, "amd64", amd64), forPlatform(t, "arm64", arm64))
	push(t, host+"/multi:v1", both)
	d, err := both.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref, root := host+"/multi@"+d.String(), t.TempDir()
	onARM := func(c *Config) { c.Platform = "linux/arm64" }
	s := open(t, root, onARM)
	leads := func(when, want string) {
		t.Helper()
		img, ok := s.Get(ref)
		if got := content(t, s, img, "hello"); !ok || got != want {
			t.Errorf("%s the name leads to %q, not %q", when, got, want)
		}
	}
	other, err := s.Pull(t.Context(), PullRequest{Reference: ref, Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	leads("with one image", "amd64")
	own := pull(t, s, ref)
	leads("after a pull for the node", "arm64")
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref, Platform: "linux/amd64"}); err != nil {
		t.Fatal(err)
	}
	leads("after a pull for another platform", "arm64")
	durable(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, root, onARM)
	leads("after a restart", "arm64")
	if err := s.Remove(t.Context(), own.ID); err != nil {
		t.Fatal(err)
	}
	if img, ok := s.Get(ref); !ok || img.ID != other.ID {
		t.Errorf("with the other alone it leads to %s, %v", img.ID, ok)
	}
	sound(t, s)
}

// TestPullTimeReachesTheDisk pulls an image again and again without a change: the time of the last pull is on the disk
// when a day has passed since the one that is there, so that a restart does not make it an image of long ago.
func TestPullTimeReachesTheDisk(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("a", "1"))))
	s := small(t, "size=8m", 0)
	img := pull(t, s, host+"/app:v1")
	durable(t, s)
	stored := func() time.Time {
		t.Helper()
		var rec catalog.ImageRecord
		if _, err := catalog.ImageKind.Read(s.disk.RecordPath(img.ID), &rec); err != nil {
			t.Fatal(err)
		}
		return rec.PulledAt
	}
	first := stored()
	var filler string
	var err error
	for n, want := range []time.Duration{0, 46 * time.Hour, 46 * time.Hour, 46 * time.Hour, 115 * time.Hour} {
		if n == 3 { // on a disk that is full the image is there all the same, and the next pull tries again
			if filler, err = volume.Fill(s.disk.Root); err != nil {
				t.Fatal(err)
			}
		} else if n == 4 {
			_ = os.Remove(filler)
		}
		again := *s.catalog.Record(img.ID)
		again.PulledAt = first.Add(time.Duration(n+1) * 23 * time.Hour)
		if _, err := catalog.Commit(s.catalog, &again); err != nil {
			t.Fatal(err)
		}
		if err := s.syncer.SyncOnce(); err != nil {
			t.Error(err)
		}
		if got, _ := s.Get(img.ID); !got.PulledAt.Equal(again.PulledAt) {
			t.Errorf("pull %d: the store says %v", n, got.PulledAt)
		}
		if got := stored().Sub(first); got != want {
			t.Errorf("pull %d: the disk has the time %v after the first pull, not %v", n, got, want)
		}
	}
	sound(t, s)
}

// TestPullTimeWaitsForNoDisk pulls an image again whose time is to be written, while the disk hangs: the pull has
// nothing to wait for, and the time is on the disk when that goes on.
func TestPullTimeWaitsForNoDisk(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("a", "1"))))
	s, slow := openSlow(t, t.Output(), nil)
	img := pull(t, s, host+"/app:v1")
	durable(t, s)
	again := *s.catalog.Record(img.ID)
	again.PulledAt = again.PulledAt.Add(30 * time.Hour)
	goOn := slow.Hang()
	defer goOn()
	over := make(chan error, 1)
	go func() {
		_, err := catalog.Commit(s.catalog, &again)
		over <- err
	}()
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(timeouts.For(20 * time.Second)):
		t.Error("it waits for the disk")
	}
	goOn()
	until(t, "the time is on the disk", func() bool {
		var rec catalog.ImageRecord
		_, err := catalog.ImageKind.Read(s.disk.RecordPath(img.ID), &rec)
		return err == nil && rec.PulledAt.Equal(again.PulledAt)
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
