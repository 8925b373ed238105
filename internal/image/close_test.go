package image

import (
	"context"
	"os"
	"testing"
	"time"

	"berth/internal/image/catalog"
	"berth/test/timeouts"
)

// TestCloseWaitsForNoDeletion closes a store that removes files for longer than anybody wants to wait.
func TestCloseWaitsForNoDeletion(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	end, began := make(chan struct{}), make(chan struct{})
	defer close(end)
	s.sweeper.InUse = func() (map[string]struct{}, bool) { close(began); <-end; return nil, true }
	ctx, cancel := context.WithCancel(t.Context())
	swept := make(chan error, 1)
	go func() { swept <- s.Sweep(ctx) }()
	<-began
	cancel()
	select {
	case err := <-swept:
		if err == nil {
			t.Error("a sweep that was left alone reports that all is swept")
		}
	case <-time.After(timeouts.For(20 * time.Second)):
		t.Fatal("who has the store swept cannot leave")
	}
	s.work.Go(func() { <-end })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
	case <-time.After(timeouts.For(4 * landing)):
		t.Error("Close waits for the end of a deletion")
	}
}

// TestRemoveGoesOnWithoutItsCaller removes an image for a caller who has left: nobody asks for its layers once more.
func TestRemoveGoesOnWithoutItsCaller(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	pull(t, s, host+"/a:v1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		_ = s.Remove(ctx, host+"/a:v1")
	}
	if n := layersOnDisk(t, s); n != 0 {
		t.Errorf("%d layers are left of an image that is gone", n)
	}
	sound(t, s)
}

// TestRemoveOfNothingSucceeds removes an image that is not there after a sweep has failed.
func TestRemoveOfNothingSucceeds(t *testing.T) {
	s := open(t, t.TempDir())
	aside := s.disk.Path(catalog.AsideDir)
	if err := os.WriteFile(aside, nil, 0o600); err != nil { // no directory: no sweep can read it
		t.Fatal(err)
	}
	if err := s.Sweep(t.Context()); err == nil {
		t.Fatal("the sweep has succeeded")
	}
	for range 2 {
		if err := s.Remove(t.Context(), "r.example/none:v1"); err != nil {
			t.Error(err)
		}
	}
}

// TestNamesOutliveAFurtherPull pulls an image by another name after one of its packings was replaced by a sound one:
// what it was called then it keeps.
func TestNamesOutliveAFurtherPull(t *testing.T) {
	f := blobServer(t)
	packings(t, f)
	s := open(t, t.TempDir())
	evil := pull(t, s, f.host+"/evil:gzip")
	spoil(t, s, evil, 0, "d/a")
	good := pull(t, s, f.host+"/good:zstd")
	push := f.host + "/good:again"
	one, two, three := goodEntries()
	f.put(t, "again", imageOf(t, zst(t, one...), zst(t, two...), zst(t, three...)))
	if img := pull(t, s, push); img.ID != good.ID {
		t.Fatalf("%s is another image", push)
	}
	isGood(t, s, good.ID, f.host+"/good:zstd", push)
}
