package remote

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// TestManifestOfAnyType resolves a reference at a registry that knows of no types: what it named is a manifest all the
// same.
func TestManifestOfAnyType(t *testing.T) {
	manifest := []byte(`{"schemaVersion":1}`)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2/app/manifests/v1" && r.URL.Path != "/v2/app/manifests/"+digest.FromBytes(manifest).String() {
			return false
		}
		if !strings.Contains(r.Header.Get("Accept"), ocispec.MediaTypeImageManifest) { // as docker-registry wants it
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(manifest)
		return true
	})
	repo := newRig(t, Options{}).repo(t, s.host+"/app:v1", nil)
	desc, err := repo.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wants(t, repo, desc, manifest)
}

// TestRangesThatDoNotWork has a host that breaks off once, and then answers wrongly for the rest: it is asked for all.
func TestRangesThatDoNotWork(t *testing.T) {
	body := noise(t, 100<<10)
	for name, answer := range map[string]func(w http.ResponseWriter){
		"refused": func(w http.ResponseWriter) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) },
		"another": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 0-9/102400")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body[:10])
		},
		"unnamed": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body[50<<10:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			s = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Range") != "" {
					answer(w)
					return true
				}
				return len(s.requests()) == 1 && s.drops(w, r, 50<<10)
			})
			desc := s.put(body)
			wants(t, newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", nil), desc, body)
			if n := len(s.requests()); n != 3 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestRangesThatNeverWork has a host that answers a range to whatever it is asked.
func TestRangesThatNeverWork(t *testing.T) {
	body := noise(t, 100<<10)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Range", "bytes 5-9/102400")
		w.WriteHeader(http.StatusPartialContent)
		return true
	})
	desc := s.put(body)
	_, err := fetch(t.Context(), newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", nil), desc)
	fails(t, err, errdefs.ErrUnknown, "range")
}

// TestMismatchedMirrorsAreNamed asks which mirrors they were.
func TestMismatchedMirrorsAreNamed(t *testing.T) {
	body := noise(t, 1000)
	lies := func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write(make([]byte, len(body)))
		return true
	}
	one, two := serve(t, lies), serve(t, lies)
	desc := one.put(body)
	r := newRig(t, Options{})
	r.mirrors(t, one, two)
	repo := r.repo(t, "registry.test/app", nil)
	for i, want := range [][]string{{one.host}, {one.host, two.host}} {
		b, err := repo.Open(t.Context(), desc)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, b)
		if again := b.ReportMismatch(); again != (i == 0) {
			t.Errorf("%d: again is %v", i, again)
		}
		if got := b.MismatchedMirrors(); len(got) != len(want) || got[0] != want[0] || got[i] != want[i] {
			t.Errorf("%d: the mirrors are %v, not %v", i, got, want)
		}
		_ = b.Close()
	}
}

func TestUnreadableAnswers(t *testing.T) {
	body := noise(t, 1000)
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		kind   error
		words  string
	}{
		"too short": {func(w http.ResponseWriter) { _, _ = w.Write(body[:20]) }, errdefs.ErrDataLoss,
			"20 bytes, not the 1000"},
		"too long": {func(w http.ResponseWriter) { _, _ = w.Write(append(bytes.Clone(body), 1)) }, errdefs.ErrDataLoss,
			"1001 bytes, not the 1000"},
		"broken":    {func(w http.ResponseWriter) { w.WriteHeader(500) }, crierrors.ErrRegistryUnavailable, "500"},
		"forbidden": {func(w http.ResponseWriter) { w.WriteHeader(403) }, errdefs.ErrPermissionDenied, "403"},
		"teapot":    {func(w http.ResponseWriter) { w.WriteHeader(418) }, errdefs.ErrUnknown, "418"},
		"part": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 0-9/1000")
			w.WriteHeader(206)
		}, errdefs.ErrUnknown, "range"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) bool { c.answer(w); return true })
			desc := s.put(body)
			_, err := fetch(t.Context(), newRig(t, Options{clock: quick()}).repo(t, s.host+"/app", nil), desc)
			fails(t, err, c.kind, c.words)
			// with another host, it does not matter
			origin := serve(t, nil)
			origin.put(body)
			r := newRig(t, Options{clock: quick()})
			r.mirrors(t, s, origin)
			wants(t, r.repo(t, "registry.test/app", nil), desc, body)
		})
	}
}
