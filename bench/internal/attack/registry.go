package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// registry is as much of a registry as a pull needs. It serves what it was given, and may be slow on purpose.
type registry struct {
	addr   string
	server http.Server

	mu       sync.Mutex
	blobs    map[digest.Digest][]byte
	types    map[digest.Digest]string        // of the media, of documents
	tags     map[string]digest.Digest        // by repository:tag
	dripping map[digest.Digest]time.Duration // blobs of which a piece comes this seldom
}

// pieceSize is what comes of a dripping blob at a time.
const pieceSize = 512

func startRegistry() (*registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &registry{
		addr: l.Addr().String(), blobs: map[digest.Digest][]byte{}, types: map[digest.Digest]string{},
		tags: map[string]digest.Digest{}, dripping: map[digest.Digest]time.Duration{},
	}
	r.server.Handler = r
	r.server.ReadHeaderTimeout = time.Minute
	go func() { _ = r.server.Serve(l) }()
	return r, nil
}

func (r *registry) close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := r.server.Shutdown(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, r.server.Close())
}

// put keeps a blob and returns its digest.
func (r *registry) put(mediaType string, data []byte) digest.Digest {
	d := digest.FromBytes(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobs[d], r.types[d] = data, mediaType
	return d
}

// tag has a name lead to a manifest.
func (r *registry) tag(name string, d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[name] = d
}

// drip has a blob come piece by piece.
func (r *registry) drip(d digest.Digest, every time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dripping[d] = every
}

// ServeHTTP answers /v2/, manifests and blobs.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	repository, what, found := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/manifests/")
	if !found {
		repository, what, found = strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/blobs/")
	}
	if !found {
		return // the version check
	}
	r.mu.Lock()
	d := digest.Digest(what)
	if tagged, ok := r.tags[repository+":"+what]; ok {
		d = tagged
	}
	data, there := r.blobs[d]
	kind, every := r.types[d], r.dripping[d]
	r.mu.Unlock()
	if !there {
		http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if req.Method != http.MethodHead {
		send(req.Context(), w, data, every)
	}
}

// send writes all at once, or piece by piece.
func send(ctx context.Context, w http.ResponseWriter, data []byte, every time.Duration) {
	if every == 0 {
		_, _ = w.Write(data)
		return
	}
	for len(data) > 0 && ctx.Err() == nil {
		n := min(pieceSize, len(data))
		if _, err := w.Write(data[:n]); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		data = data[n:]
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
}
