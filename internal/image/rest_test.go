package image

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/test/timeouts"
)

// TestSlowRestIsNotRead has a layer that cannot be unpacked, whose rest drips for hours: the pull fails now, and says
// why.
func TestSlowRestIsNotRead(t *testing.T) {
	t.Parallel()
	evil := startHostile(t, 1<<30, anyDigests(1), func(h *hostile, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1073741824")
		_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff}) // gzip, and then nothing of the sort
		sending(1<<10, 50*time.Millisecond)(h, w, r)
	})
	s := open(t, t.TempDir())
	s.pipeline.look = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(30*time.Second)) // filling one buffer takes as long
	defer cancel()
	_, err := s.Pull(ctx, PullRequest{Reference: evil.host + "/evil:v1"})
	if kindOf(err) != crierrors.ErrRegistryUnavailable || !strings.Contains(err.Error(), "comes too slowly") {
		t.Errorf("kind %v, %v", kindOf(err), err)
	}
	nothingInFlight(t, s)
}
