package image

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/image/progress"
	"berth/test/timeouts"
)

// TestConfigIsFetchedOnce has a second pull arrive when the first has read the config and waits for its layer.
func TestConfigIsFetchedOnce(t *testing.T) {
	host := startRegistry(t, "")
	img := imageOf(t, gz(t, file("a", "1")))
	push(t, host+"/same:v1", img)
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.HasSuffix(r.URL.Path, config.String()) {
			<-held
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	begin := func() { // returns when the layer is waited for
		at := make(chan struct{})
		var once sync.Once
		wg.Go(func() {
			_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/same:v1", Progress: func(e progress.Event) {
				if e.Phase != progress.Resolving {
					once.Do(func() { close(at) })
				}
			}})
			if err != nil {
				t.Error(err)
			}
		})
		<-at
	}
	begin()
	begin()
	close(held)
	wg.Wait()
	if n := p.blobGets()[config.String()]; n != 1 {
		t.Errorf("the config was fetched %d times", n)
	}
}

// TestFailureIsShared has many wait for a layer that its registry cannot serve: they fail together, not one after
// another.
func TestFailureIsShared(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	img := imageOf(t, gz(t, file("a", "1")))
	push(t, host+"/same:v1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	const callers = 6
	held := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, blob.String()) {
			<-held
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			_, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/same:v1"})
			if kindOf(err) != crierrors.ErrRegistryUnavailable {
				t.Errorf("got %v", err)
			}
		})
	}
	for end := time.Now().Add(timeouts.For(time.Minute)); waiting(s, blob.String()) < callers; {
		if time.Sleep(time.Millisecond); time.Now().After(end) {
			t.Fatalf("%d of %d callers wait for the layer", waiting(s, blob.String()), callers)
		}
	}
	close(held)
	wg.Wait()
	if n := p.blobGets()[blob.String()]; n > 5 {
		t.Errorf("the layer was asked for %d times", n)
	}
}

// waiting is how many callers wait for the fetch of a blob.
func waiting(s *Store, blob string) (n int) {
	s.pipeline.layers.mu.Lock()
	defer s.pipeline.layers.mu.Unlock()
	for key, fl := range s.pipeline.layers.byID {
		if strings.HasPrefix(key, strings.TrimPrefix(blob, "sha256:")+" ") {
			n += fl.refs
		}
	}
	return n
}

// TestCloseWaitsForWhoIsLeft closes a store whose only caller has left a fetch that is still noticing it.
func TestCloseWaitsForWhoIsLeft(t *testing.T) {
	s := open(t, t.TempDir())
	noticed, last := make(chan struct{}), make(chan struct{})
	_, _, leave := s.pipeline.layers.join("layer", nil,
		func(ctx context.Context, _ *progress.Listeners) (*rawLayer, error) {
			<-ctx.Done()
			close(noticed)
			<-last
			return nil, context.Cause(ctx)
		}, dropRaw)
	leave()
	<-noticed
	closed := make(chan struct{})
	go func() { _ = s.Close(); close(closed) }()
	select {
	case <-closed:
		t.Error("it was not waited for")
	case <-time.After(50 * time.Millisecond):
	}
	close(last)
	<-closed
}

// TestConfigFailsForAll has a registry fail to send a config while several callers wait for it: it fails for all of
// them at once, rather than after as many tries as there are callers.
func TestConfigFailsForAll(t *testing.T) {
	host := startRegistry(t, "")
	built := imageOf(t, gz(t, file("a", "1")))
	config, err := built.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	const callers = 4
	for n := range callers {
		push(t, fmt.Sprintf("%s/app:v%d", host, n), built)
	}
	goOn := make(chan struct{})
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, config.String()) {
			<-goOn
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
	s := open(t, t.TempDir())
	failed := make(chan error)
	for n := range callers {
		go func() {
			_, err := s.Pull(t.Context(), PullRequest{Reference: fmt.Sprintf("%s/app:v%d", p.host, n)})
			failed <- err
		}()
	}
	until(t, "all wait for the config", func() bool {
		s.pipeline.configs.mu.Lock()
		defer s.pipeline.configs.mu.Unlock()
		for _, fl := range s.pipeline.configs.byID {
			return fl.refs == callers
		}
		return false
	})
	close(goOn)
	for range callers {
		if err := <-failed; err == nil {
			t.Error("a pull without its config succeeded")
		}
	}
	together := p.blobGets()[config.String()]
	if _, err := s.Pull(t.Context(), PullRequest{Reference: p.host + "/app:v0"}); err == nil {
		t.Error("a pull without its config succeeded")
	}
	if alone := p.blobGets()[config.String()] - together; together != alone {
		t.Errorf("%d callers asked for the config %d times, one alone %d times", callers, together, alone)
	}
}
