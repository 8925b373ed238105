package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"berth/test/timeouts"
)

// startRegistry runs Debian's docker-registry on a free port of loopback until the test ends. It chooses the port
// itself, and tells it when it listens: one that was found free before may be somebody else's by then.
func startRegistry(t testing.TB, extra string) (host string) {
	t.Helper()
	bin, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed: apt-get install docker-registry")
	}
	dir := t.TempDir()
	conf, said := filepath.Join(dir, "config.yml"), filepath.Join(dir, "log")
	text := fmt.Sprintf("version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n"+
		"    rootdirectory: %s/data\nhttp:\n  addr: 127.0.0.1:0\n%s", dir, extra)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(bin, "serve", conf)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		raw, err := os.ReadFile(said)
		if found := listening.FindSubmatch(raw); found != nil {
			return string(found[1])
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("docker-registry does not listen: %v: %s", err, raw)
		}
	}
}

var listening = regexp.MustCompile(`"listening on (127\.0\.0\.1:\d+)[",]`)

// entry is a hand-made tar entry: a name and its body, or a header.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, body}
}
func folder(name string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(e.body))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// packed is a layer whose compressed and plain form are both known.
type packed struct {
	blob, plain []byte
	kind        types.MediaType
}

func (p packed) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(p.blob))
	return h, err
}
func (p packed) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(p.plain))
	return h, err
}
func (p packed) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p.blob)), nil
}
func (p packed) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p.plain)), nil
}
func (p packed) Size() (int64, error)                { return int64(len(p.blob)), nil }
func (p packed) MediaType() (types.MediaType, error) { return p.kind, nil }

func gz(t testing.TB, entries ...entry) packed {
	plain := tarOf(t, entries...)
	var buf bytes.Buffer
	w, _ := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	_, _ = w.Write(plain)
	_ = w.Close()
	return packed{buf.Bytes(), plain, types.OCILayer}
}

func zst(t testing.TB, entries ...entry) packed {
	plain := tarOf(t, entries...)
	enc, _ := zstd.NewWriter(nil)
	return packed{enc.EncodeAll(plain, nil), plain, types.OCILayerZStd}
}

func plainLayer(t testing.TB, entries ...entry) packed {
	plain := tarOf(t, entries...)
	return packed{plain, plain, types.OCIUncompressedLayer}
}

// imageOf makes an image of the layers, in the OCI form.
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	cf.Config.Cmd = []string{"/hello"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

func dockerImage(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func push(t testing.TB, ref string, what remote.Taggable, auth ...remote.Option) {
	t.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	opts := append([]remote.Option{remote.WithAuth(authn.Anonymous)}, auth...)
	switch v := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(r, v, opts...)
	case v1.Image:
		err = remote.Write(r, v, opts...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// proxy counts what is asked of a registry and may answer itself.
type proxy struct {
	host  string
	mu    sync.Mutex
	gets  map[string]int
	auths []string // the Authorization header of every request
}

func startProxy(t testing.TB, target string,
	answer func(w http.ResponseWriter, r *http.Request, next http.Handler)) *proxy {
	t.Helper()
	rp := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	rp.ErrorLog = nil
	p := &proxy{gets: map[string]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.host = l.Addr().String()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		if r.Method == http.MethodGet {
			p.gets[r.URL.Path]++
		}
		p.auths = append(p.auths, r.Header.Get("Authorization"))
		p.mu.Unlock()
		if answer != nil {
			answer(w, r, rp)
			return
		}
		rp.ServeHTTP(w, r)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return p
}

func (p *proxy) blobGets() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for path, n := range p.gets {
		if _, d, ok := strings.Cut(path, "/blobs/"); ok {
			out[d] += n // over all repositories
		}
	}
	return out
}
