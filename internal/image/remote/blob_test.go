package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

func TestResolveAndFetch(t *testing.T) {
	s := serve(t, nil)
	manifest, layer := []byte(`{"schemaVersion":2}`), noise(t, 300<<10)
	s.put(manifest, "v1")
	desc := s.put(layer)
	r := newRig(t, Options{sizes: small})
	repo := r.repo(t, s.host+"/app:v1", nil)
	found, err := repo.Resolve(t.Context())
	if err != nil || found.Digest != digest.FromBytes(manifest) || found.Size != int64(len(manifest)) ||
		found.MediaType != ocispec.MediaTypeImageManifest {
		t.Fatalf("%+v, %v", found, err)
	}
	wants(t, repo, found, manifest)
	wants(t, repo, desc, layer)
	wants(t, repo, s.put(nil), nil)
	again, err := r.repo(t, s.host+"/app@"+found.Digest.String(), nil).Resolve(t.Context())
	if err != nil || again.Digest != found.Digest {
		t.Errorf("by digest: %+v, %v", again, err)
	}
	_, err = r.repo(t, s.host+"/app:v2", nil).Resolve(t.Context())
	fails(t, err, errdefs.ErrNotFound, s.host, "404", "app:v2")
	_, err = fetch(t.Context(), repo, ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1})
	fails(t, err, errdefs.ErrNotFound, "no such thing", digest.FromString("x").String())
}

// TestResolveByGet asks servers that do not answer HEAD, or say too little.
func TestResolveByGet(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	refuses := func(status int) func(s *server, w http.ResponseWriter, r *http.Request) bool {
		return func(_ *server, w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(status)
			}
			return r.Method == http.MethodHead
		}
	}
	for name, answer := range map[string]func(s *server, w http.ResponseWriter, r *http.Request) bool{
		"HEAD is 400": refuses(400), "HEAD is 403": refuses(403), "HEAD is 404": refuses(404), "HEAD is 405": refuses(405),
		"HEAD is 501": refuses(501),
		"no digest": func(_ *server, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			_, _ = w.Write(manifest)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool { return answer(s, w, r) })
			s.put(manifest, "v1")
			desc, err := newRig(t, Options{}).repo(t, s.host+"/app:v1", nil).Resolve(t.Context())
			if err != nil || desc.Digest != digest.FromBytes(manifest) || desc.Size != int64(len(manifest)) {
				t.Errorf("%+v, %v", desc, err)
			}
		})
	}
}

// TestNotFoundByBoth asks for a tag that is not there: GET says so too, and what it says is shown.
func TestNotFoundByBoth(t *testing.T) {
	s := serve(t, nil)
	_, err := newRig(t, Options{}).repo(t, s.host+"/app:v1", nil).Resolve(t.Context())
	fails(t, err, errdefs.ErrNotFound, "404", "no such thing")
	if n := len(s.requests()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// slowly answers a range a little at a time, so that its reader starves.
func slowly(s *server, pause time.Duration) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		s.content(&trickle{w, pause}, r)
		return true
	}
}

type trickle struct {
	http.ResponseWriter
	pause time.Duration
}

func (w *trickle) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = w.ResponseWriter.Write(p[n:min(len(p), n+8<<10)])
		n += m
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		time.Sleep(w.pause)
	}
	return n, err
}

func TestSeveralConnections(t *testing.T) {
	var s *server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) bool { return slowly(s, 10*time.Millisecond)(w, r) })
	body := noise(t, 4<<20+5) // for a reader that was held up for seconds, and found that much, starves in the rest
	desc := s.put(body)
	r := newRig(t, Options{sizes: small, Buffer: 128 << 10})
	wants(t, r.repo(t, s.host+"/app", nil), desc, body)
	var ahead int
	for _, q := range s.requests() {
		if from := rangeOf(q); from > 0 {
			ahead++
		}
	}
	if ahead < 20 {
		t.Errorf("only %d of the %d requests were for a part: nothing was fetched ahead", ahead, len(s.requests()))
	}
	if r.buffers.left != 128<<10 {
		t.Error("some of the buffer was not given back")
	}
}

// TestFewConnections shows what keeps a blob to one connection.
func TestFewConnections(t *testing.T) {
	body := noise(t, 512<<10)
	for name, c := range map[string]struct {
		o     Options
		whole bool
		slow  time.Duration
		most  int
	}{
		"unproven":   {Options{sizes: untried}, false, 5 * time.Millisecond, 1},
		"small":      {Options{}, false, 5 * time.Millisecond, 1},
		"no ranges":  {Options{sizes: small}, true, 5 * time.Millisecond, 2},
		"configured": {Options{sizes: small, Connections: 1}, false, 5 * time.Millisecond, 5},
		"no memory":  {Options{sizes: small, Buffer: 1}, false, 5 * time.Millisecond, 6},
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if c.whole {
					r.Header.Del("Range")
				}
				s.content(&trickle{w, c.slow}, r)
				return true
			})
			desc := s.put(body)
			b, err := newRig(t, c.o).repo(t, s.host+"/app", nil).Open(t.Context(), desc)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			var got bytes.Buffer
			for err == nil {
				_, err = io.CopyN(&got, b, 16<<10)
			}
			if err != io.EOF || !bytes.Equal(got.Bytes(), body) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
			if n := len(s.requests()); n > c.most {
				t.Errorf("%d requests, want %d at most", n, c.most)
			}
		})
	}
}

// TestGauge tells a reader that starves from one that is slow itself.
func TestGauge(t *testing.T) {
	for name, c := range map[string]struct {
		waited, worked time.Duration // for each read of 64 KiB
		starved        bool
	}{
		"slow source":            {20 * time.Millisecond, time.Millisecond, true},
		"slow reader":            {time.Millisecond, 20 * time.Millisecond, false},
		"both fast":              {time.Millisecond / 10, time.Millisecond / 100, true},
		"as slow as each other":  {10 * time.Millisecond, 10 * time.Millisecond, false},
		"one read in the window": {200 * time.Millisecond, 0, true},
	} {
		now := time.Unix(0, 0)
		g, starved := gauge{since: now}, false
		for range 3000 {
			now = now.Add(c.worked + c.waited)
			_, is := g.note(now, c.waited)
			starved = starved || is
		}
		if starved != c.starved {
			t.Errorf("%s: starved is %v", name, starved)
		}
	}
}

// TestDropsAreResumed breaks every answer off after a while.
func TestDropsAreResumed(t *testing.T) {
	body := noise(t, 400<<10)
	for name, ranges := range map[string]bool{"by range": true, "from the start": false} {
		t.Run(name, func(t *testing.T) {
			var s *server
			var n atomic.Int64
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if !ranges {
					r.Header.Del("Range")
				}
				if i := n.Add(1); i <= 6 {
					return s.drops(w, r, i*50<<10)
				}
				s.content(w, r)
				return true
			})
			desc := s.put(body)
			clk := quick()
			r := newRig(t, Options{clock: clk, sizes: sizes{large: 1 << 20, segment: 64 << 10, span: 1 << 20}})
			wants(t, r.repo(t, s.host+"/app", nil), desc, body)
			for i, q := range s.requests()[1:] {
				if rangeOf(q) <= 0 {
					t.Errorf("request %d begins at 0 again", i+1)
				}
			}
			if ranges {
				return
			}
			for _, d := range clk.waits() {
				if d <= 0 || d > mostBackoff {
					t.Errorf("waited %v", d)
				}
			}
		})
	}
}

func TestNoProgressEnds(t *testing.T) {
	var s *server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) bool { return s.drops(w, r, 10) })
	desc := s.put(noise(t, 100<<10))
	clk := quick()
	r := newRig(t, Options{clock: clk})
	_, err := fetch(t.Context(), r.repo(t, s.host+"/app", nil), desc)
	fails(t, err, crierrors.ErrRegistryUnavailable, "broke off", s.host)
	if n := len(s.requests()); n != mostFailures {
		t.Errorf("%d attempts", n)
	}
	waits := clk.waits()
	for i, d := range waits {
		least := firstBackoff << i / 2
		if d < least || d > 2*least {
			t.Errorf("the waits %v do not double", waits)
		}
	}
	if len(waits) != mostFailures-1 {
		t.Errorf("waits: %v", waits)
	}
}

// TestMirrorTakesOver lets a mirror die in many ways in the middle of a blob: the registry goes on at the same byte.
func TestMirrorTakesOver(t *testing.T) {
	body := noise(t, 200<<10)
	const half = 100 << 10
	for name, dies := range map[string]func(s *server, w http.ResponseWriter, r *http.Request) bool{
		"drops": func(s *server, w http.ResponseWriter, r *http.Request) bool {
			if rangeOf(r) >= half {
				panic(http.ErrAbortHandler)
			}
			return s.drops(w, r, half)
		},
		"refuses": func(s *server, w http.ResponseWriter, r *http.Request) bool {
			if rangeOf(r) >= half {
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			return s.drops(w, r, half)
		},
		"answers another range": func(s *server, w http.ResponseWriter, r *http.Request) bool {
			if rangeOf(r) >= half {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(body)-1, len(body)))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(body)
				return true
			}
			return s.drops(w, r, half)
		},
		"stalls": func(s *server, w http.ResponseWriter, r *http.Request) bool {
			s.content(&hang{ResponseWriter: w, left: half, r: r}, r)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mirror *server
			mirror = serve(t, func(w http.ResponseWriter, r *http.Request) bool { return dies(mirror, w, r) })
			origin := serve(t, nil)
			mirror.put(body)
			desc := origin.put(body)
			o, left := Options{clock: quick()}, func() {}
			if name == "stalls" { // when all that it sent was read, its time is up
				clk := newManual()
				o = Options{clock: clk, Stall: forever}
				left = func() { eventually(t, "the reader waits", clk.strike) }
			}
			r := newRig(t, o)
			r.mirrors(t, mirror, origin)
			b, err := r.repo(t, "registry.test/app", nil).Open(t.Context(), desc)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			got := make([]byte, half)
			if _, err := io.ReadFull(b, got); err != nil {
				t.Fatal(err)
			}
			var struck sync.WaitGroup
			struck.Go(left)
			rest, err := io.ReadAll(b)
			struck.Wait()
			if got = append(got, rest...); err != nil || !bytes.Equal(got, body) {
				t.Fatalf("got %d bytes that are not the %d served, %v", len(got), len(body), err)
			}
			asked := origin.requests()
			if len(asked) != 1 || rangeOf(asked[0]) != half {
				t.Errorf("the registry was asked %d times, from %d", len(asked), rangeOf(asked[0]))
			}
			if ns := mirror.requests()[0].URL.Query().Get("ns"); ns != "registry.test" {
				t.Errorf("the mirror was asked for the namespace %q", ns)
			}
		})
	}
}

// hang sends left bytes and then nothing until its client has gone.
type hang struct {
	http.ResponseWriter
	left int
	r    *http.Request
}

func (h *hang) Write(p []byte) (int, error) {
	n := min(h.left, len(p))
	_, err := h.ResponseWriter.Write(p[:n])
	if h.left -= n; h.left == 0 {
		_ = http.NewResponseController(h.ResponseWriter).Flush()
		<-h.r.Context().Done()
		return n, h.r.Context().Err()
	}
	return n, err
}

// TestStall stands the clock still: only time that a reader waits counts.
func TestStall(t *testing.T) {
	var s *server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		left := 10 << 10
		if rangeOf(r) > 0 {
			left = 10
		}
		s.content(&hang{w, left, r}, r)
		return true
	})
	desc := s.put(noise(t, 100<<10))
	clk := newManual()
	b, err := newRig(t, Options{clock: clk}).repo(t, s.host+"/app", nil).Open(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := io.ReadFull(b, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	clk.advance(time.Hour) // a slow consumer
	if _, err := io.ReadFull(b, make([]byte, 9<<10)); err != nil {
		t.Fatalf("the time of a slow consumer counted: %v", err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, b)
		result <- err
	}()
	for {
		select {
		case err := <-result:
			fails(t, err, crierrors.ErrRegistryUnavailable, "stalled", "4 KiB in 30s")
			return
		case <-time.After(10 * time.Millisecond):
			if len(clk.waiting()) > 0 {
				clk.advance(usualStall)
			}
		}
	}
}

// TestTrickle sends less than the least progress again and again.
func TestTrickle(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "100000")
		for {
			if _, err := w.Write(make([]byte, 100)); err != nil || r.Context().Err() != nil {
				return true
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	})
	desc := s.put(noise(t, 100000))
	repo := newRig(t, Options{Stall: 300 * time.Millisecond}).repo(t, s.host+"/app", nil)
	_, err := fetch(t.Context(), repo, desc)
	fails(t, err, crierrors.ErrRegistryUnavailable, "stalled")
}

func TestRetryAfter(t *testing.T) {
	body := noise(t, 1000)
	for _, c := range []struct {
		header string
		status int
		waits  time.Duration // about; 0: no second request
	}{
		{"7", 429, 7 * time.Second},
		{"90", 503, 90 * time.Second},
		{time.Now().Add(60 * time.Second).UTC().Format(http.TimeFormat), 429, 60 * time.Second},
		{"7200", 429, 0},
		{time.Now().Add(7200 * time.Second).UTC().Format(http.TimeFormat), 503, 0},
	} {
		t.Run(c.header, func(t *testing.T) {
			var n atomic.Int64
			s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if n.Add(1) > 1 {
					return false
				}
				w.Header().Set("Retry-After", c.header)
				w.WriteHeader(c.status)
				return true
			})
			desc := s.put(body)
			clk := quick()
			_, err := fetch(t.Context(), newRig(t, Options{clock: clk}).repo(t, s.host+"/app", nil), desc)
			if c.waits == 0 {
				fails(t, err, crierrors.ErrRegistryUnavailable, fmt.Sprint(c.status), "left alone for")
				return
			}
			if waits := clk.waits(); err != nil || len(waits) != 1 || (waits[0]-c.waits).Abs() > 30*time.Second {
				t.Errorf("waited %v: %v", waits, err)
			}
		})
	}
}

// TestBusyMirror has another host to ask: a long Retry-After is not waited for.
func TestBusyMirror(t *testing.T) {
	mirror := serve(t, func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	origin := serve(t, nil)
	desc := origin.put([]byte("layer"))
	clk := quick()
	r := newRig(t, Options{clock: clk})
	r.mirrors(t, mirror, origin)
	wants(t, r.repo(t, "registry.test/app", nil), desc, []byte("layer"))
	if len(clk.waits()) > 0 {
		t.Errorf("waited %v", clk.waits())
	}
}

// TestCancelled ends a reader in each place where it may wait.
func TestCancelled(t *testing.T) {
	for name, place := range map[string]struct {
		answer func(s *server, w http.ResponseWriter, r *http.Request)
		clock  clock
	}{
		"for an answer": {answer: func(_ *server, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		"for bytes":     {answer: func(s *server, w http.ResponseWriter, r *http.Request) { s.content(&hang{w, 100, r}, r) }},
		"for a retry":   {func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, newManual()},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 100)
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				asked <- struct{}{}
				place.answer(s, w, r)
				return true
			})
			desc := s.put(noise(t, 10<<10))
			repo := newRig(t, Options{clock: place.clock}).repo(t, s.host+"/app", nil)
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error, 1)
			go func() {
				_, err := fetch(ctx, repo, desc)
				result <- err
			}()
			<-asked
			gone := errors.New("nobody waits")
			cancel(gone)
			if err := <-result; !errors.Is(err, gone) {
				t.Errorf("got %v", err)
			}
			eventually(t, "the server sees the end", func() bool { return s.over() == len(s.requests()) })
		})
	}
}

// TestMismatch has two mirrors that serve other content: each is asked once.
func TestMismatch(t *testing.T) {
	body := noise(t, 5000)
	lie := bytes.Clone(body)
	lie[2500] ^= 1
	lies := func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write(lie); return true }
	one, two, origin := serve(t, lies), serve(t, lies), serve(t, nil)
	desc := origin.put(body)
	r := newRig(t, Options{})
	r.mirrors(t, one, two, origin)
	repo := r.repo(t, "registry.test/app", nil)
	if got := honest(t, repo, desc, 3); !bytes.Equal(got, body) {
		t.Error("the honest one was not asked")
	}
	if len(one.requests())+len(two.requests())+len(origin.requests()) != 3 {
		t.Error("a mirror that served other content was asked again")
	}
	origin.answer = lies
	repo = r.repo(t, "registry.test/app", nil)
	if honest(t, repo, desc, 3) != nil {
		t.Error("other content was taken")
	}
	_, err := fetch(t.Context(), repo, desc)
	fails(t, err, errdefs.ErrDataLoss, one.host, two.host, origin.host, "not what the digest promises")
}

// honest fetches until the digest is right, as a puller does; nil when ReportMismatch says that it is of no use.
func honest(t *testing.T, repo *Repository, desc ocispec.Descriptor, most int) []byte {
	t.Helper()
	for range most {
		b, err := repo.Open(t.Context(), desc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(b)
		_ = b.Close()
		if err != nil {
			t.Fatal(err)
		}
		if digest.FromBytes(got) == desc.Digest {
			return got
		}
		if !b.ReportMismatch() {
			return nil
		}
	}
	t.Fatalf("no end after %d mismatches", most)
	return nil
}

// TestMismatchOfTwo mixes a half of other content with one as promised.
func TestMismatchOfTwo(t *testing.T) {
	body := noise(t, 100<<10)
	lie := bytes.Clone(body)
	lie[10] ^= 1
	for name, liar := range map[string]int{"the mirror lies": 0, "the registry lies": 1} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			var mirror *server
			mirror = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if i := n.Add(1); i == 1 {
					return mirror.drops(w, r, 50<<10)
				} else if i <= mostFailures {
					panic(http.ErrAbortHandler)
				}
				return false
			})
			origin := serve(t, nil)
			desc := origin.put(body)
			mirror.put(body)
			if liar == 0 {
				mirror.blobs[desc.Digest.String()] = lie
			} else {
				lie := bytes.Clone(body)
				lie[90<<10] ^= 1
				origin.blobs[desc.Digest.String()] = lie
			}
			r := newRig(t, Options{clock: quick()})
			r.mirrors(t, mirror, origin)
			if got := honest(t, r.repo(t, "registry.test/app", nil), desc, 4); !bytes.Equal(got, body) {
				t.Error("the honest one was not found")
			}
		})
	}
}
