package image

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/image/progress"
)

// BenchmarkFair pulls an image alone, and beside ten registries that hold up four layers each in some way, in turn,
// while a client that stands still follows the pull. It reports the median of both and what one is of the other:
//
//	go test -run XXX -bench Fair -benchtime 5x ./internal/image
func BenchmarkFair(b *testing.B) {
	b.Setenv("TMPDIR", "/dev/shm")
	host := startRegistry(b, "")
	var layers []v1.Layer
	for i := range 6 {
		layers = append(layers, noisy(b, fmt.Sprint(i), 24<<20))
	}
	ref := host + "/bench:v1"
	push(b, ref, imageOf(b, layers...))
	for _, way := range []struct {
		name   string
		serve  serving
		layers int64
	}{
		{"stall-limit", sending(200, time.Second), 4},
		{"under-floor", sending(10<<10, 50*time.Millisecond), 4},
		{"over-floor", sending(15<<10, 50*time.Millisecond), 4},
		{"bursts", sending(1<<20, 3*time.Second), 4},
		{"silent", silent, 4},
		{"retry-after", busy, 1},
	} {
		b.Run(way.name, func(b *testing.B) {
			var alone, beside []time.Duration
			for b.Loop() {
				alone = append(alone, benchFair(b, ref, nil, 0))
				beside = append(beside, benchFair(b, ref, way.serve, way.layers))
			}
			slices.Sort(alone)
			slices.Sort(beside)
			a, c := alone[len(alone)/2].Seconds(), beside[len(beside)/2].Seconds()
			b.ReportMetric(a, "s-alone")
			b.ReportMetric(c, "s-beside")
			b.ReportMetric(c/a, "ratio")
		})
	}
}

// benchFair is how long a pull takes in a new store, beside ten registries that serve so.
func benchFair(b *testing.B, ref string, serve serving, layers int64) (took time.Duration) {
	root, err := os.MkdirTemp("", "fair")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(root)
	s := open(b, root)
	defer s.Close()
	var slow []*hostile
	for range 10 {
		if serve != nil {
			slow = append(slow, startHostile(b, 1<<30, anyDigests(4), serve))
		}
	}
	defer hostilePulls(b, s, slow, layers)()
	goOn := make(chan struct{})
	followed := make(chan error)
	go func() {
		_, err := s.Pull(b.Context(), PullRequest{Reference: ref, Progress: func(progress.Event) { <-goOn }})
		followed <- err
	}()
	start := time.Now()
	pull(b, s, ref)
	took = time.Since(start)
	close(goOn)
	if err := <-followed; err != nil {
		b.Error(err)
	}
	return took
}
