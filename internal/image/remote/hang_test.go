package remote

import (
	"context"
	"net/http"
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
