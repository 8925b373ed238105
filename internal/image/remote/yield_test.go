package remote

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"
)

// TestBuffersOfASlowHost has the segments of one blob take all buffers, and come slowly. When another blob wants one,
// they are given back, and all of the slow one is read all the same.
func TestBuffersOfASlowHost(t *testing.T) {
	var s *server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) bool { return slowly(s, 10*time.Millisecond)(w, r) })
	body := noise(t, 400<<10)
	desc := s.put(body)
	r := newRig(t, Options{sizes: small, Buffer: 64 << 10})
	b, err := r.repo(t, s.host+"/app", nil).Open(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.ahead.wanted = true
	var got bytes.Buffer
	for len(b.ahead.queue) < 2 {
		if _, err := io.CopyN(&got, b, 1<<10); err != nil {
			t.Fatal(err)
		}
	}
	if r.buffers.get(time.Now()) != nil {
		t.Fatal("there is a buffer left")
	}
	if _, err := io.CopyN(&got, b, 1<<10); err != nil || len(b.ahead.queue) == 0 {
		t.Fatalf("segments that have just begun are given up, or %v", err)
	}
	for _, seg := range b.ahead.queue {
		seg.begun = seg.begun.Add(-longHeld)
	}
	b.ahead.feed()
	other := r.buffers.get(time.Now())
	if other == nil {
		t.Error("the slow blob keeps its buffers")
	}
	if _, err := io.Copy(&got, b); err != nil || !bytes.Equal(got.Bytes(), body) {
		t.Errorf("%d of %d bytes, %v", got.Len(), len(body), err)
	}
	r.buffers.put(other)
}
