package remote

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/test/timeouts"
)

// TestHangingBodies has a mirror whose answers begin and never end, where their text hardly matters. Time stands still,
// but for the wait for such an answer.
func TestHangingBodies(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	hangs := func(w http.ResponseWriter, r *http.Request, clk *manual, status int) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(status)
		if r.Method == http.MethodHead {
			return // its answer has no body: who asked comes with the next request
		}
		eventually(t, "the client waits for an answer", func() bool { return len(clk.waiting()) > 0 })
		before := clk.calledOff()
		_, _ = w.Write([]byte("{"))
		_ = http.NewResponseController(w).Flush()
		eventually(t, "the client waits for the rest", func() bool { return clk.calledOff() > before && clk.strike() })
		<-r.Context().Done()
	}
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request, clk *manual){
		"error": func(w http.ResponseWriter, r *http.Request, clk *manual) { hangs(w, r, clk, http.StatusNotFound) },
		"redirect": func(w http.ResponseWriter, r *http.Request, clk *manual) {
			w.Header().Set("Location", "/elsewhere")
			hangs(w, r, clk, http.StatusFound)
		},
		"challenge": func(w http.ResponseWriter, r *http.Request, clk *manual) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			hangs(w, r, clk, http.StatusUnauthorized)
		},
		"manifest": func(w http.ResponseWriter, r *http.Request, clk *manual) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			hangs(w, r, clk, http.StatusOK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clk := newManual()
			mirror := serve(t, func(w http.ResponseWriter, r *http.Request) bool { answer(w, r, clk); return true })
			origin := serve(t, nil)
			desc := origin.put(manifest, "v1")
			desc.MediaType = ocispec.MediaTypeImageManifest
			r := newRig(t, Options{Stall: forever, clock: clk})
			r.mirrors(t, mirror, origin)
			repo := r.repo(t, "registry.test/app:v1", nil)
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
			defer cancel()
			if found, err := repo.Resolve(ctx); err != nil || found.Digest != digest.FromBytes(manifest) {
				t.Fatalf("%v, %v", found.Digest, err)
			}
			if got, err := fetch(ctx, repo, desc); err != nil || string(got) != string(manifest) {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
}

// TestHangingManifest has a mirror that answers HEAD and hangs over GET of a manifest: it gives way when it may stall
// no longer, and is not asked first for the next document of the pull.
func TestHangingManifest(t *testing.T) {
	index, manifest := []byte(`{"schemaVersion":2,"manifests":[]}`), []byte(`{"schemaVersion":2}`)
	for name, flush := range map[string]bool{"headers too": false, "headers first": true} {
		t.Run(name, func(t *testing.T) {
			clk := newManual()
			var waited []time.Duration
			mirror, origin := serve(t, nil), serve(t, nil)
			mirror.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodHead {
					return false
				}
				eventually(t, "the client waits for an answer", func() bool { return len(clk.waiting()) > 0 })
				if flush {
					before := clk.calledOff()
					w.Header().Set("Content-Length", strconv.Itoa(len(index)))
					_ = http.NewResponseController(w).Flush()
					eventually(t, "the client waits for the rest", func() bool {
						return clk.calledOff() > before && len(clk.waiting()) > 0
					})
				}
				waited = append(waited, clk.waiting()...)
				clk.strike()
				<-r.Context().Done()
				return true
			}
			for _, s := range []*server{mirror, origin} {
				s.put(index, "v1")
				s.put(manifest)
			}
			r := newRig(t, Options{clock: clk})
			r.mirrors(t, mirror, origin)
			repo := r.repo(t, "registry.test/app:v1", nil)
			desc, err := repo.Resolve(t.Context())
			if err != nil || len(origin.requests()) > 0 {
				t.Fatalf("%v, and the registry was asked %d times", err, len(origin.requests()))
			}
			wants(t, repo, desc, index)
			next := origin.put(manifest)
			next.MediaType = ocispec.MediaTypeImageManifest
			wants(t, repo, next, manifest)
			if m, n := len(mirror.requests()), len(origin.requests()); m != 2 || n != 2 {
				t.Errorf("the mirror was asked %d times, the registry %d", m, n)
			}
			if !slices.Equal(waited, []time.Duration{usualStall}) {
				t.Errorf("waited %v", waited)
			}
		})
	}
}
