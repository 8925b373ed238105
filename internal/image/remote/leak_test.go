package remote

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"berth/internal/config"
)

// TestNothingIsLeft ends a blob that several connections fetch: the server sees each of them end, no goroutine stays.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(cancel context.CancelFunc, b *Blob){
		"cancelled": func(cancel context.CancelFunc, b *Blob) { cancel(); _, _ = io.Copy(io.Discard, b); _ = b.Close() },
		"closed":    func(_ context.CancelFunc, b *Blob) { _ = b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var s *server
			var mu sync.Mutex
			open := map[net.Conn]bool{}
			s = start(t, func(w http.ResponseWriter, r *http.Request) bool {
				if rangeOf(r) >= 64<<10 {
					s.content(&hang{w, 10 << 10, r}, r) // what is fetched ahead
					return true
				}
				return slowly(s, 20*1000*1000)(w, r)
			}, func(h *httptest.Server) {
				h.Config.ConnState = func(c net.Conn, state http.ConnState) {
					mu.Lock()
					defer mu.Unlock()
					open[c] = state != http.StateClosed
				}
				h.Start()
			})
			desc := s.put(noise(t, 1<<20))
			r := newRig(t, Options{sizes: small})
			before := ours()
			repo := r.repo(t, s.host+"/app", nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b, err := repo.Open(ctx, desc)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 1000)
			for len(b.ahead.queue) < 3 {
				if _, err := b.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
			end(cancel, b)
			repo.Close()
			eventually(t, "all connections end", func() bool {
				mu.Lock()
				defer mu.Unlock()
				for _, is := range open {
					if is {
						return false
					}
				}
				return len(open) > 1
			})
			eventually(t, "all goroutines end", func() bool { return ours() <= before })
			if r.buffers.left != config.Default().Images.MaxBufferBytes {
				t.Error("some of the buffer was not given back")
			}
		})
	}
}

// ours counts the goroutines of a client.
func ours() (n int) {
	buf := make([]byte, 1<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "persistConn") || strings.Contains(g, "remote.(*") && !strings.Contains(g, "_test.go") {
			n++
		}
	}
	return n
}

// TestClosedRepository goes on for a blob that somebody else waits for.
func TestClosedRepository(t *testing.T) {
	s := serve(t, nil)
	body := noise(t, 200<<10)
	desc := s.put(body)
	repo := newRig(t, Options{sizes: small}).repo(t, s.host+"/app", nil)
	b, err := repo.Open(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	repo.Close()
	if got, err := io.ReadAll(b); err != nil || len(got) != len(body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_ = b.Close()
	wants(t, repo, desc, body)
	eventually(t, "idle connections are closed", func() bool { return ours() == 0 })
}
