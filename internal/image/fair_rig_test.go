package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// hostile is a registry of one image, whose layers are as large as it says and never what their digests promise. It
// serves them in its own way.
type hostile struct {
	host  string
	docs  map[string][]byte // by tag and digest
	size  int64
	serve serving
	asked atomic.Int64 // for layers
}

// serving answers a request for a layer.
type serving func(h *hostile, w http.ResponseWriter, r *http.Request)

// startHostile makes a registry whose image claims to have layers with these diff ids.
func startHostile(t testing.TB, size int64, diffs []digest.Digest, serve serving) *hostile {
	t.Helper()
	h := &hostile{docs: map[string][]byte{}, size: size, serve: serve}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}}
	config.RootFS.Type, config.RootFS.DiffIDs = "layers", diffs
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	manifest.Config = h.add(t, "", ocispec.MediaTypeImageConfig, config)
	for range diffs {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: anyDigest(), Size: size}
		manifest.Layers = append(manifest.Layers, desc)
	}
	h.add(t, "v1", ocispec.MediaTypeImageManifest, manifest)
	srv := httptest.NewServer(http.HandlerFunc(h.ServeHTTP))
	t.Cleanup(srv.CloseClientConnections)
	t.Cleanup(func() { go srv.Close() }) // an answer that goes on does not hold up the test
	h.host = srv.Listener.Addr().String()
	return h
}

func anyDigest() digest.Digest { return digest.FromString(rand.Text()) }

func anyDigests(n int) (out []digest.Digest) {
	for range n {
		out = append(out, anyDigest())
	}
	return out
}

func (h *hostile) add(t testing.TB, tag, kind string, doc any) ocispec.Descriptor {
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(raw)
	h.docs[d.String()], h.docs[tag] = raw, raw
	return ocispec.Descriptor{MediaType: kind, Digest: d, Size: int64(len(raw))}
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	doc, ok := h.docs[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	if !ok {
		h.asked.Add(1)
		h.serve(h, w, r)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(doc)
	}
}

// junk is the beginning of a tar with one file without end.
func junk() []byte {
	var b bytes.Buffer
	_ = tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "junk", Mode: 0o600, Size: 1 << 34, Format: tar.FormatPAX})
	return b.Bytes()
}

// sending sends junk: in the first of every period so many bytes.
func sending(bytes int, period time.Duration) serving {
	return func(h *hostile, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.FormatInt(h.size, 10))
		_, _ = w.Write(junk())
		for chunk := make([]byte, bytes); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(period):
			}
		}
	}
}

// silent does not answer.
func silent(_ *hostile, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// busy asks to be left alone for minutes, again and again.
func busy(_ *hostile, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "110")
	w.WriteHeader(http.StatusTooManyRequests)
}

// elsewhere redirects to an address.
func elsewhere(address string) serving {
	return func(_ *hostile, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+address+"/blob", http.StatusTemporaryRedirect)
	}
}

// fullListener is an address to which no connection is made: its queue is full, and nobody accepts.
func fullListener(t testing.TB) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
	for range 8 {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue of a listener never gets full")
	return ""
}

// hostilePulls pulls from registries, and wants each pull to go on until it is ended.
func hostilePulls(t testing.TB, s *Store, from []*hostile, layers int64) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, h := range from {
		work.Go(func() {
			_, err := s.Pull(ctx, PullRequest{Reference: h.host + "/evil:v1"})
			if ctx.Err() == nil {
				t.Errorf("the pull from a slow registry ends: %v", err)
			}
		})
	}
	until(t, "all layers of slow registries are asked for", func() bool {
		var asked int64
		for _, h := range from {
			asked += min(layers, h.asked.Load())
		}
		return asked == layers*int64(len(from))
	})
	return func() { cancel(); work.Wait() }
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(time.Minute)); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// noisy is a layer of one file that does not compress.
func noisy(t testing.TB, name string, size int) packed {
	body := make([]byte, size)
	if _, err := io.ReadFull(rand.Reader, body); err != nil {
		t.Fatal(err)
	}
	return gz(t, file(name, string(body)))
}
