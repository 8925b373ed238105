package image

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"
)

// TestPullsAreSeen counts pulls and the bytes that they fetched: each layer once, nothing of an image that is there,
// and nothing of an archive.
func TestPullsAreSeen(t *testing.T) {
	host := startRegistry(t, "")
	one, two := gz(t, file("one", "1")), gz(t, file("two", "2"))
	push(t, host+"/app:v1", imageOf(t, one, two))
	push(t, host+"/app:v2", imageOf(t, one, gz(t, file("three", "3"))))
	var mu sync.Mutex // guards errs
	var errs []error
	s := open(t, t.TempDir(), func(c *Config) {
		c.PullSeen = func(took time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); took <= 0 {
				t.Errorf("a pull took %v", took)
			}
		}
	})
	first := uint64(len(one.blob) + len(two.blob))
	pull(t, s, host+"/app:v1")
	pull(t, s, host+"/app:v1")
	if got := Fetched(s); got != first {
		t.Errorf("%d bytes were fetched, wanted %d", got, first)
	}
	pull(t, s, host+"/app:v2")
	second := Fetched(s) - first
	if want := uint64(len(gz(t, file("three", "3")).blob)); second != want {
		t.Errorf("then %d bytes were fetched, wanted %d", second, want)
	}
	for _, ref := range []string{"127.0.0.1:1/app:v1", "Not A Reference"} {
		if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err == nil {
			t.Errorf("%s was pulled", ref)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(errs) != 5 || errors.Join(errs[:3]...) != nil || errs[4] == nil ||
		!errors.Is(errs[3], crierrors.ErrRegistryUnavailable) {
		t.Errorf("seen were pulls that ended with %v", errs)
	}
	if got := Fetched(s); got != first+second {
		t.Errorf("%d bytes were fetched by pulls that failed", got-first-second)
	}
	importInto(t, host, s)
}

// importInto imports an image that the registry has into the store, and wants nothing to be counted.
func importInto(t *testing.T, host string, s *Store) {
	t.Helper()
	push(t, host+"/other:v1", imageOf(t, gz(t, file("four", "4"))))
	from := open(t, t.TempDir())
	pull(t, from, host+"/other:v1")
	var archive bytes.Buffer
	if err := from.Export(t.Context(), ExportRequest{Images: []string{host + "/other:v1"}}, &archive); err != nil {
		t.Fatal(err)
	}
	before := Fetched(s)
	if _, err := s.Import(t.Context(), &archive, nil); err != nil {
		t.Fatal(err)
	}
	if got := Fetched(s); got != before {
		t.Errorf("%d bytes of an archive were counted", got-before)
	}
}
