package image

import (
	"context"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/timeouts"
)

// TestTenSlowRegistries pulls from a registry that is well while ten others hold up the four layers of an image each,
// in every way there is. With a slot for as long as a transfer lasts, the pull never gets one.
func TestTenSlowRegistries(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	var layers []v1.Layer
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		layers = append(layers, noisy(t, name, 1<<20))
	}
	push(t, host+"/app:v1", imageOf(t, layers...))
	for name, serve := range map[string]serving{
		"just over the stall limit":        sending(200, time.Second),
		"under the floor":                  sending(10<<10, 50*time.Millisecond),
		"over the floor":                   sending(15<<10, 50*time.Millisecond),
		"bursts":                           sending(1<<20, 3*time.Second),
		"no answer":                        silent,
		"Retry-After":                      busy,
		"a connection that is never there": elsewhere(fullListener(t)),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			var slow []*hostile
			for range 10 {
				slow = append(slow, startHostile(t, 1<<30, anyDigests(4), serve))
			}
			layers := int64(4)
			if name == "Retry-After" {
				layers = 1 // the others wait as long as the first is to
			}
			defer hostilePulls(t, s, slow, layers)()
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
			defer cancel()
			if _, err := s.Pull(ctx, PullRequest{Reference: host + "/app:v1"}); err != nil {
				t.Error(err)
			}
		})
	}
}
