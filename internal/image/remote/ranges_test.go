package remote

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"
)

// TestFirstRequestIsPlain counts what a large layer costs before more connections are tried: one request, without a
// range.
func TestFirstRequestIsPlain(t *testing.T) {
	s := serve(t, nil)
	body := noise(t, 1<<20)
	desc := s.put(body)
	wants(t, newRig(t, Options{sizes: untried}).repo(t, s.host+"/app", nil), desc, body)
	asked := s.requests()
	if len(asked) != 1 || asked[0].Header.Get("Range") != "" {
		t.Errorf("%d requests, the first for the range %q", len(asked), asked[0].Header.Get("Range"))
	}
}

// TestRangeRefused has hosts that refuse a range, each in its way, when a download that broke off is to go on: they are
// asked for all of it. A status that may pass is asked again with the range first.
func TestRangeRefused(t *testing.T) {
	body := noise(t, 100<<10)
	for status, want := range map[int]int{
		400: 3, 403: 3, 405: 3, 406: 3, 411: 3, 412: 3, 416: 3, 418: 3, 422: 3, 501: 3, 505: 3,
		500: 6, 502: 6, 503: 6,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Range") != "" {
					w.WriteHeader(status)
					return true
				}
				return len(s.requests()) == 1 && s.drops(w, r, 50<<10)
			})
			desc := s.put(body)
			wants(t, newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", nil), desc, body)
			if n := len(s.requests()); n != want {
				t.Errorf("%d requests, not %d", n, want)
			}
		})
	}
}

// TestRangeRefusedByAMirror has another host to ask: that one goes on at the byte, and the mirror is asked for all when
// it cannot.
func TestRangeRefusedByAMirror(t *testing.T) {
	body := noise(t, 100<<10)
	for _, status := range []int{400, 403, 405, 501} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			var mirror *server
			mirror = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Range") != "" {
					w.WriteHeader(status)
					return true
				}
				return len(mirror.requests()) == 1 && mirror.drops(w, r, 50<<10)
			})
			origin := serve(t, nil)
			mirror.put(body)
			desc := origin.put(body)
			r := newRig(t, Options{clock: quick()})
			r.mirrors(t, mirror, origin)
			wants(t, r.repo(t, "registry.test/app", nil), desc, body)
			if asked := origin.requests(); len(asked) != 1 || rangeOf(asked[0]) != 50<<10 {
				t.Errorf("the registry was asked %v", asked)
			}
			alone := serve(t, nil) // it lacks the blob
			mirror.asked = nil
			r.mirrors(t, mirror, alone)
			wants(t, r.repo(t, "registry.test/app", nil), desc, body)
			if m, n := len(mirror.requests()), len(alone.requests()); m != 3 || n != 1 {
				t.Errorf("the mirror was asked %d times, the registry %d", m, n)
			}
		})
	}
}

// TestRangesAreTried has hosts that say different things of ranges, and do different things. A reader that starves gets
// more connections where ranges work, and where they do not it goes on reading what it had: nothing is sent twice.
func TestRangesAreTried(t *testing.T) {
	body := noise(t, 1<<20)
	for name, c := range map[string]struct {
		says    string
		refuses int
		most    int // requests; 0 is many
	}{
		"announced":              {"bytes", 0, 0},
		"not announced":          {"", 0, 0},
		"none":                   {"none", 0, 1},
		"announced and refused":  {"bytes", 403, 2},
		"not announced, refused": {"", 400, 2},
		"announced and ignored":  {"bytes", 200, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			var sent atomic.Int64 // to the request for all
			var over atomic.Bool
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				w = &silentOnRanges{w, c.says}
				if r.Header.Get("Range") == "" {
					s.content(&trickle{&counting{w, &sent}, 5 * time.Millisecond}, r)
					over.Store(true)
					return true
				}
				if c.refuses == 0 {
					s.content(&trickle{w, 5 * time.Millisecond}, r)
					return true
				}
				eventually(t, "the reader goes on, or gives up what it had", func() bool {
					return sent.Load() >= 256<<10 || over.Load()
				})
				if c.refuses == 200 {
					r.Header.Del("Range")
					return false
				}
				w.WriteHeader(c.refuses)
				return true
			})
			desc := s.put(body)
			wantsInParts(t, newRig(t, Options{sizes: small}).repo(t, s.host+"/app", nil), desc, body)
			asked, whole := s.requests(), 0
			for _, r := range asked {
				if r.Header.Get("Range") == "" {
					whole++
				}
			}
			if whole != 1 || c.most > 0 && len(asked) > c.most || c.most == 0 && len(asked) < 5 {
				t.Errorf("%d requests, %d of them for all", len(asked), whole)
			}
		})
	}
}

// counting adds up what is sent.
type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (w *counting) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.sent.Add(int64(n))
	return n, err
}

func (w *counting) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// silentOnRanges says of ranges what it is told to.
type silentOnRanges struct {
	http.ResponseWriter
	says string
}

func (w *silentOnRanges) WriteHeader(code int) {
	w.Header().Del("Accept-Ranges")
	if w.says != "" {
		w.Header().Set("Accept-Ranges", w.says)
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *silentOnRanges) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestLateFirstByte has a cache that fetches a blob before it answers, for longer than a host may stall. Time stands
// still, but for the wait for the first byte.
func TestLateFirstByte(t *testing.T) {
	body := noise(t, 10<<10)
	for name, flush := range map[string]bool{"headers too": false, "headers first": true} {
		t.Run(name, func(t *testing.T) {
			clk := newManual()
			s := serve(t, nil)
			s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				if flush {
					_ = http.NewResponseController(w).Flush()
				}
				eventually(t, "the client waits", func() bool { return len(clk.waiting()) > 0 })
				clk.advance(usualFirstByte - time.Second)
				_, _ = w.Write(body)
				return true
			}
			wants(t, newRig(t, Options{clock: clk}).repo(t, s.host+"/app", nil), s.put(body), body)
			if n := len(s.requests()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestLateMirrorIsNotDown has a mirror that is too late with one blob: the registry sends that, and the mirror the
// next. Alone it is asked once more, for then the blob may be there.
func TestLateMirrorIsNotDown(t *testing.T) {
	clk := newManual()
	one, two := noise(t, 10<<10), noise(t, 10<<10)
	var mirror *server
	tooLate := func(_ http.ResponseWriter, r *http.Request) bool {
		if len(mirror.requests()) > 1 {
			return false
		}
		eventually(t, "the client waits", func() bool { return len(clk.waiting()) > 0 })
		clk.advance(usualFirstByte)
		<-r.Context().Done()
		return true
	}
	mirror = serve(t, tooLate)
	origin := serve(t, nil)
	mirror.put(one)
	mirror.put(two)
	desc, next := origin.put(one), origin.put(two)
	r := newRig(t, Options{clock: clk})
	r.mirrors(t, mirror, origin)
	repo := r.repo(t, "registry.test/app", nil)
	wants(t, repo, desc, one)
	wants(t, repo, next, two)
	if m, n := len(mirror.requests()), len(origin.requests()); m != 2 || n != 1 {
		t.Errorf("the mirror was asked %d times, the registry %d", m, n)
	}
	alone := newRig(t, Options{clock: hurried{clk}}).repo(t, mirror.host+"/app", nil)
	mirror.asked = nil
	wants(t, alone, desc, one)
	if n := len(mirror.requests()); n != 2 {
		t.Errorf("alone it was asked %d times", n)
	}
}

// hurried is a clock that stands still, but for the pauses between two attempts.
type hurried struct{ *manual }

func (h hurried) AfterFunc(d time.Duration, f func()) func() bool {
	if d > mostBackoff {
		return h.manual.AfterFunc(d, f)
	}
	go f()
	return func() bool { return true }
}

// TestFirstByteOfAHost has a limit for one host, which its hosts.toml says.
func TestFirstByteOfAHost(t *testing.T) {
	clk := newManual()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) bool {
		eventually(t, "the client waits", clk.strike)
		<-r.Context().Done()
		return true
	})
	r := newRig(t, Options{clock: hurried{clk}})
	r.hosts(t, "registry.test", "server = %q\nfirst_byte_timeout = \"17m\"\n", s.URL)
	_, err := fetch(t.Context(), r.repo(t, "registry.test/app", nil), s.put([]byte("layer")))
	fails(t, err, crierrors.ErrRegistryUnavailable, "did not begin to send it within 17m")
}

// TestManifestsComeSoon does not wait for a manifest as long as for a blob.
func TestManifestsComeSoon(t *testing.T) {
	clk := newManual()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) bool {
		eventually(t, "the client waits", clk.strike)
		<-r.Context().Done()
		return true
	})
	_, err := newRig(t, Options{clock: hurried{clk}}).repo(t, s.host+"/app:v1", nil).Resolve(t.Context())
	fails(t, err, crierrors.ErrRegistryUnavailable, "did not begin its answer within 30s")
	if !strings.Contains(err.Error(), s.host) {
		t.Errorf("%v does not name the host", err)
	}
}
