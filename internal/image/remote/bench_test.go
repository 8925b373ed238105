package remote

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"
)

// BenchmarkLoopback compares a Blob with one plain GET on a link that is faster than any reader of images.
func BenchmarkLoopback(b *testing.B) {
	s := serve(b, nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 16<<20)
	desc := s.put(body)
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			resp, err := http.Get(s.URL + "/v2/app/blobs/" + desc.Digest.String())
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.CopyBuffer(onlyWriter{}, resp.Body, make([]byte, 256<<10)); err != nil || n != desc.Size {
				b.Fatal(n, err)
			}
			_ = resp.Body.Close()
		}
	})
	b.Run("blob", func(b *testing.B) {
		repo := newRig(b, Options{}).repo(b, s.host+"/app", nil)
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			blob, err := repo.Open(b.Context(), desc)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.CopyBuffer(onlyWriter{}, blob, make([]byte, 256<<10)); err != nil || n != desc.Size {
				b.Fatal(n, err)
			}
			_ = blob.Close()
		}
	})
}

// BenchmarkSlowConnections reads from a server that pauses a connection after every 8 KiB.
func BenchmarkSlowConnections(b *testing.B) {
	var s *server
	s = serve(b, func(w http.ResponseWriter, r *http.Request) bool { return slowly(s, time.Millisecond)(w, r) })
	body := bytes.Repeat([]byte("0123456789abcdef"), 4<<20)
	desc := s.put(body)
	for name, connections := range map[string]int{"one": 1, "four": 4} {
		b.Run(name, func(b *testing.B) {
			repo := newRig(b, Options{Connections: connections}).repo(b, s.host+"/app", nil)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				blob, err := repo.Open(b.Context(), desc)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(onlyWriter{}, blob, make([]byte, 256<<10)); err != nil || n != desc.Size {
					b.Fatal(n, err)
				}
				_ = blob.Close()
			}
		})
	}
}

// onlyWriter takes everything through the buffer that io.CopyBuffer was given.
type onlyWriter struct{}

func (onlyWriter) Write(p []byte) (int, error) { return len(p), nil }
