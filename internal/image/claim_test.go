package image

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"berth/test/timeouts"
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
			defer hostilePulls(t, s, []*hostile{evil}, 1)()
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
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
