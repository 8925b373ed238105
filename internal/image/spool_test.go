package image

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"berth/internal/image/progress"
	"berth/test/timeouts"
)

// wide is a layer of one file, packed with the largest window there may be.
func wide(t *testing.T, name string, size int) packed {
	t.Helper()
	plain := noisy(t, name, size).plain
	var blob bytes.Buffer
	w, err := zstd.NewWriter(&blob, zstd.WithWindowSize(128<<20), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(plain)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed{blob.Bytes(), plain, types.OCILayerZStd}
}

// TestSlowWideWindow has a layer with the largest window come slowly while another one wants as much: that one is
// unpacked at once, and the slow one when all of it is there.
func TestSlowWideWindow(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/slow:v1", imageOf(t, wide(t, "slow", 3<<20)))
	push(t, host+"/fast:v1", imageOf(t, wide(t, "fast", 3<<20)))
	var asked atomic.Int32
	shut := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
			// It comes further than what is read ahead of it, and the second time less far.
			w = &stopping{ResponseWriter: w, after: 2 << 20 >> (asked.Add(1) - 1), goOn: shut}
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	slow := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/slow:v1"})
		slow <- err
	}()
	until(t, "the slow layer has begun", func() bool { return asked.Load() == 1 })
	until(t, "it has its window", func() bool { return s.receives() > 3<<19 }) // more than is read ahead of it
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if _, err := s.Pull(ctx, PullRequest{Reference: host + "/fast:v1"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the slow layer is asked for again", func() bool { return asked.Load() == 2 })
	until(t, "the progress of the second fetch is told", func() bool {
		n := s.receives()
		return n > 0 && n <= 1<<20
	})
	close(shut)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	img, _ := s.Get(p.host + "/slow:v1")
	if got := content(t, s, img, "slow"); len(got) != 3<<20 {
		t.Errorf("the slow layer's file has %d bytes", len(got))
	}
	sound(t, s)
}

// TestSpoolEndsAtTheFloor has a layer with the largest window be slow, as TestSlowWideWindow does, that is too large
// for what may be used of the disk: it is not fetched to the disk first.
func TestSpoolEndsAtTheFloor(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/slow:v1", imageOf(t, wide(t, "slow", 9<<20)))
	push(t, host+"/fast:v1", imageOf(t, wide(t, "fast", 1<<20)))
	var asked atomic.Int32
	shut := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
			if asked.Add(1) == 1 {
				w = &stopping{ResponseWriter: w, after: 2 << 20, goOn: shut}
			}
		}
		next.ServeHTTP(w, r)
	})
	defer close(shut)
	s := small(t, "size=8m", 10)
	slow := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/slow:v1"})
		slow <- err
	}()
	until(t, "it has its window", func() bool { return s.receives() > 3<<19 })
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if _, err := s.Pull(ctx, PullRequest{Reference: host + "/fast:v1"}); err != nil {
		t.Fatal(err)
	}
	tooLow(t, s, <-slow)
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked for %d times, though there was no room for it", n)
	}
	nothingInFlight(t, s)
}

// receives is how many bytes of the layers on their way are there.
func (s *Store) receives() (n int64) {
	s.pipeline.layers.mu.Lock()
	defer s.pipeline.layers.mu.Unlock()
	for _, fl := range s.pipeline.layers.byID {
		if last := fl.listen.Last(); last.Phase == progress.Downloading {
			n += last.Done
		}
	}
	return n
}

// stopping passes on so many bytes, and the rest later.
type stopping struct {
	http.ResponseWriter
	after int
	goOn  chan struct{}
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.after -= len(p); s.after < 0 {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		<-s.goOn
	}
	return s.ResponseWriter.Write(p)
}

func (s *stopping) Unwrap() http.ResponseWriter { return s.ResponseWriter }
