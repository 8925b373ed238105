package image

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"berth/test/patience"
)

// diffOf is the diff id of a layer.
func diffOf(t testing.TB, l v1.Layer) digest.Digest {
	t.Helper()
	diff, err := l.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	return digest.Digest(diff.String())
}

// TestClaimedLayer has an image claim the layer of another one, and its registry send anything, slowly or much of it.
// Who wants the layer from elsewhere gets it.
func TestClaimedLayer(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	for name, c := range map[string]struct {
		size  int64
		serve serving
	}{
		"drips":                 {1 << 20, sending(500, 100*time.Millisecond)},
		"silent":                {1 << 20, silent},
		"much more than it has": {100 << 30, sending(1<<20, 20*time.Millisecond)},
		"fast, then nothing":    {1 << 30, sending(8<<20, time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted := noisy(t, "wanted", 2<<20)
			ref := host + "/" + strings.Map(onlyLetters, name) + ":v1"
			push(t, ref, imageOf(t, wanted))
			evil := startHostile(t, c.size, []digest.Digest{diffOf(t, wanted)}, c.serve)
			s := open(t, t.TempDir())
			s.pacing = pacing{look: patience.For(100 * time.Millisecond), chance: patience.For(time.Second)}
			defer hostilePulls(t, s, []*hostile{evil}, 1)()
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
			defer cancel()
			img, err := s.Pull(ctx, PullRequest{Reference: ref})
			if err != nil {
				t.Fatal(err)
			}
			if got := content(t, s, img, "wanted"); len(got) != 2<<20 {
				t.Errorf("the layer's file has %d bytes", len(got))
			}
		})
	}
}

func onlyLetters(r rune) rune {
	if r >= 'a' && r <= 'z' {
		return r
	}
	return -1
}

// TestSecondFetchIsNotFaster has two callers want a layer from two hosts behind one slow link: the second one tries,
// and leaves it to the first.
func TestSecondFetchIsNotFaster(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/same:v1", imageOf(t, noisy(t, "a", 1<<20)))
	slowly := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
			w = &slowWriter{w, 128 << 10}
		}
		next.ServeHTTP(w, r)
	}
	a, b := startProxy(t, host, slowly), startProxy(t, host, slowly)
	s := open(t, t.TempDir())
	s.pacing = pacing{look: 300 * time.Millisecond, chance: 600 * time.Millisecond}
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: a.host + "/same:v1"})
		done <- err
	}()
	until(t, "the first fetch has begun", func() bool { return len(a.blobGets()) == 2 })
	pull(t, s, b.host+"/same:v1")
	if err := <-done; err != nil {
		t.Error(err)
	}
	most := 0
	for _, n := range b.blobGets() {
		most = max(most, n)
	}
	if most > 4 { // 0.3 s, 1.2, 4.8, each behind the one before: the layer takes 8
		t.Errorf("the second caller began %d times", most)
	}
}

// slowWriter passes on so many bytes a second.
type slowWriter struct {
	http.ResponseWriter
	rate int
}

func (s *slowWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = s.ResponseWriter.Write(p[n:min(len(p), n+s.rate/20)])
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		n += m
		time.Sleep(50 * time.Millisecond)
	}
	return n, err
}

// TestFirstFetchFails has the first of two fetches of a layer fail: the second caller has its own.
func TestFirstFetchFails(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	wanted := noisy(t, "wanted", 100<<10)
	push(t, host+"/app:v1", imageOf(t, wanted))
	goOn := make(chan struct{})
	refuse := func(_ *hostile, w http.ResponseWriter, _ *http.Request) {
		<-goOn
		w.WriteHeader(http.StatusForbidden)
	}
	evil := startHostile(t, 1<<20, []digest.Digest{diffOf(t, wanted)}, refuse)
	slow := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
			close(goOn)
			<-slow
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	s.pacing = pacing{look: 50 * time.Millisecond, chance: time.Hour}
	failed := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: evil.host + "/evil:v1"})
		close(slow)
		failed <- err
	}()
	until(t, "the first fetch has begun", func() bool { return evil.asked.Load() > 0 })
	pull(t, s, p.host+"/app:v1")
	if err := <-failed; err == nil {
		t.Error("the image of a registry that refuses its layer was pulled")
	}
}
