package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/config"
	"berth/test/timeouts"
)

// server is a registry of one repository, app, in process. It keeps what it was asked.
type server struct {
	*httptest.Server
	host string
	// answer may answer itself, by returning true.
	answer func(w http.ResponseWriter, r *http.Request) bool

	mu    sync.Mutex // guards what follows
	blobs map[string][]byte
	asked []*http.Request
	ended int // requests that are over
}

func serve(t testing.TB, answer func(http.ResponseWriter, *http.Request) bool) *server {
	t.Helper()
	return start(t, answer, (*httptest.Server).Start)
}

func start(t testing.TB, answer func(http.ResponseWriter, *http.Request) bool, run func(*httptest.Server)) *server {
	t.Helper()
	s := &server{answer: answer, blobs: map[string][]byte{}}
	s.Server = httptest.NewUnstartedServer(s)
	run(s.Server)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.host = u.Host
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.Clone(context.Background()))
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended++
	}()
	if s.answer != nil && s.answer(w, r) {
		return
	}
	s.content(w, r)
}

// content answers as a registry should.
func (s *server) content(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	s.mu.Lock()
	body, ok := s.blobs[name]
	s.mu.Unlock()
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"no such thing"}]}`)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
	} else {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// put keeps a blob under its digest and other names.
func (s *server) put(body []byte, names ...string) ocispec.Descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digest.FromBytes(body)
	for _, n := range append(names, d.String()) {
		s.blobs[n] = body
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: int64(len(body))}
}

func (s *server) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.asked...)
}

func (s *server) over() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// drops sends n bytes of what the server has and breaks the connection.
func (s *server) drops(w http.ResponseWriter, r *http.Request, n int64) bool {
	s.content(&cut{ResponseWriter: w, left: n}, r)
	return true
}

type cut struct {
	http.ResponseWriter
	left int64
}

func (c *cut) Write(p []byte) (int, error) {
	if int64(len(p)) >= c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= int64(len(p))
	return c.ResponseWriter.Write(p)
}

func noise(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// rig is a Client with a configuration directory.
type rig struct {
	*Client
	dir string
}

// usualStall is how long a host may send next to nothing where the configuration does not say.
var usualStall = config.Default().Images.StallTimeout.Duration

// usualFirstByte is how long a host may take to begin to send a blob where the configuration does not say.
var usualFirstByte = config.Default().Images.FirstByteTimeout.Duration

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.ConfigDir = t.TempDir()
	usual := config.Default().Images
	o.Connections = cmp.Or(o.Connections, usual.MaxLayerConnections)
	o.Stall = cmp.Or(o.Stall, usualStall)
	o.FirstByte = cmp.Or(o.FirstByte, usualFirstByte)
	o.Buffer = cmp.Or(o.Buffer, usual.MaxBufferBytes)
	if _, ok := o.clock.(hasty); ok {
		o.Stall, o.FirstByte = forever, forever
	}
	return &rig{New(o), o.ConfigDir}
}

// hosts writes the hosts.toml of a directory.
func (r *rig) hosts(t testing.TB, name, format string, args ...any) {
	t.Helper()
	r.file(t, filepath.Join(name, "hosts.toml"), fmt.Sprintf(format, args...))
}

func (r *rig) file(t testing.TB, name, text string) {
	t.Helper()
	p := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// mirrors writes a hosts.toml for registry.test: all but the last are mirrors.
func (r *rig) mirrors(t testing.TB, servers ...*server) {
	t.Helper()
	last := len(servers) - 1
	text := fmt.Sprintf("server = %q\n", servers[last].URL)
	for _, s := range servers[:last] {
		text += fmt.Sprintf("[host.%q]\n", s.URL)
	}
	r.hosts(t, "registry.test", "%s", text)
}

func (r *rig) repo(t testing.TB, ref string, auth *Auth) *Repository {
	t.Helper()
	repo, err := r.Repository(t.Context(), named(t, ref), auth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(repo.Close)
	return repo
}

func named(t testing.TB, s string) reference.Named {
	t.Helper()
	n, err := reference.ParseDockerRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fetch reads a blob whole.
func fetch(ctx context.Context, r *Repository, desc ocispec.Descriptor) ([]byte, error) {
	b, err := r.Open(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return io.ReadAll(b)
}

// wants fetches a blob and compares.
func wants(t testing.TB, r *Repository, desc ocispec.Descriptor, body []byte) {
	t.Helper()
	got, err := fetch(t.Context(), r, desc)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, body) {
		t.Fatalf("got %d bytes that are not the %d served", len(got), len(body))
	}
}

// wantsInParts is wants for a reader that is known to starve: it fetches ahead from the first read on.
func wantsInParts(t testing.TB, r *Repository, desc ocispec.Descriptor, body []byte) {
	t.Helper()
	b, err := r.Open(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.ahead.wanted = true
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, body) {
		t.Fatalf("got %d bytes that are not the %d served, %v", len(got), len(body), err)
	}
}

// fails wants an Error of a kind whose text holds all the words.
func fails(t testing.TB, err error, kind error, words ...string) {
	t.Helper()
	e, ok := err.(*Error)
	if !ok || e.Kind != kind {
		t.Errorf("got %#v (%v), want the kind %v", err, err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("%q does not say %q", e, w)
		}
	}
}

// eventually waits for what a server notices later than its client.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeouts.For(time.Minute)); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// manual is a clock that stands still until it is moved on.
type manual struct {
	mu     sync.Mutex // guards what follows
	now    time.Time
	timers map[*alarm]struct{}
	slept  []time.Duration // what was waited for, once it was over
	calls  int             // waits that were called off
}

type alarm struct {
	at time.Time
	d  time.Duration
	f  func()
}

func newManual() *manual { return &manual{now: time.Unix(1e9, 0), timers: map[*alarm]struct{}{}} }

func (m *manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *manual) AfterFunc(d time.Duration, f func()) func() bool {
	m.mu.Lock()
	a := &alarm{m.now.Add(d), d, f}
	m.timers[a] = struct{}{}
	m.mu.Unlock()
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, ok := m.timers[a]
		delete(m.timers, a)
		m.calls++
		return ok
	}
}

// waiting lists what is waited for.
func (m *manual) waiting() (out []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range m.timers {
		out = append(out, a.d)
	}
	return out
}

func (m *manual) advance(d time.Duration) {
	m.mu.Lock()
	m.now = m.now.Add(d)
	var due []*alarm
	for a := range m.timers {
		if !a.at.After(m.now) {
			due = append(due, a)
			delete(m.timers, a)
			m.slept = append(m.slept, a.d)
		}
	}
	m.mu.Unlock()
	for _, a := range due {
		a.f()
	}
}

// calledOff counts the waits that ended before their time.
func (m *manual) calledOff() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// strike ends the waits that there are, however long they are, and says whether there was any.
func (m *manual) strike() bool {
	m.mu.Lock()
	due := m.timers
	m.timers = map[*alarm]struct{}{}
	m.mu.Unlock()
	for a := range due {
		a.f()
	}
	return len(due) > 0
}

// hasty is a clock on which every wait but a stall's is over at once, and counted.
type hasty struct {
	*manual
	limit time.Duration // waits from here on are stalls, and never over
}

func (h hasty) AfterFunc(d time.Duration, f func()) func() bool {
	if d >= h.limit {
		return func() bool { return true }
	}
	h.mu.Lock()
	h.now = h.now.Add(d)
	h.slept = append(h.slept, d)
	h.mu.Unlock()
	go f()
	return func() bool { return true }
}

func (h hasty) waits() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]time.Duration(nil), h.slept...)
}

func quick() hasty { return hasty{newManual(), forever / 2} }

// forever is a stall that no test waits for.
const forever = 1000 * time.Hour

// small cuts blobs into pieces that a test can look through.
var small = sizes{large: 64 << 10, segment: 32 << 10, span: 128 << 10}

// untried are as small, and more connections are never tried.
var untried = sizes{large: 64 << 10, segment: 32 << 10, span: 128 << 10, probe: time.Hour}

func rangeOf(r *http.Request) (from int64) {
	v := strings.TrimPrefix(r.Header.Get("Range"), "bytes=")
	first, _, _ := strings.Cut(v, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func cancelled(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
