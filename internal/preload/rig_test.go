package preload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image"
	"berth/internal/image/progress"
	"berth/internal/op"
	"berth/test/timeouts"
)

// store is an image store whose archives are lists of names, a name a line, and whose registries have everything.
type store struct {
	mu       sync.Mutex // guards what follows
	images   map[string]image.Image
	imported []string // contents
	asked    []string // names that were pulled, in vain too
	pins     []string
	fragile  bool // images are not on the disk

	reading func(*os.File)          // in the middle of an import
	pulling func(name string) error // at the begin of a pull
}

func (s *store) Import(_ context.Context, r io.Reader, _ func(progress.Event)) ([]image.Image, error) {
	head := make([]byte, 1)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it is empty")
	}
	if s.reading != nil {
		s.reading(r.(*os.File))
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	text := string(head) + string(rest)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imported = append(s.imported, text)
	if strings.HasPrefix(text, "bad") {
		return nil, fail.New(errdefs.ErrInvalidArgument, "it is not a whole tar archive: %s", text)
	}
	var all []image.Image
	for _, name := range strings.Fields(text) {
		all = append(all, s.addLocked(name))
	}
	return all, nil
}

func (s *store) addLocked(name string) image.Image {
	img := image.Image{ID: "sha256:" + name, RepoTags: []string{name}, Durable: !s.fragile}
	if strings.HasPrefix(name, "nameless") {
		img.RepoTags = nil
	}
	s.images[name], s.images[img.ID] = img, img
	return img
}

func (s *store) Pull(ctx context.Context, req image.PullRequest) (image.Image, error) {
	s.mu.Lock()
	s.asked = append(s.asked, req.Reference)
	pulling := s.pulling
	s.mu.Unlock()
	if pulling != nil {
		if err := pulling(req.Reference); err != nil {
			return image.Image{}, err
		}
	}
	if ctx.Err() != nil {
		return image.Image{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addLocked(req.Reference), nil
}

func (s *store) Get(name string) (image.Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, there := s.images[name]
	return img, there
}

// remove is a garbage collection, or a hand.
func (s *store) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, name)
	delete(s.images, "sha256:"+name)
}

func (s *store) setPins(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins = names
}

// of reads something of the store.
func of[T any](s *store, what func(*store) []T) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(what(s))
}

func imported(s *store) []string { return s.imported }
func asked(s *store) []string    { return s.asked }
func pinned(s *store) []string   { return s.pins }

// rig is a directory with a store.
type rig struct {
	*testing.T
	*store
	dir, record string
	pin         bool
	d           *Directory
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	r := &rig{T: t, store: &store{images: map[string]image.Image{}}, pin: true}
	r.dir, r.record = filepath.Join(t.TempDir(), "images.d"), filepath.Join(t.TempDir(), "preload", "record")
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

// open opens the directory as a daemon does that starts.
func (r *rig) open() {
	r.Helper()
	r.d = Open(Config{
		Path: r.dir, Pin: r.pin, Store: r.store, SetPins: r.setPins, Record: r.record,
		Log: slog.New(slog.DiscardHandler),
	})
	r.d.pace = pace{
		gather: 10 * time.Millisecond, settled: 100 * time.Millisecond, busy: 50 * time.Millisecond, every: time.Second,
		blind: 100 * time.Millisecond, retry: op.Backoff{First: 50 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	r.Cleanup(r.d.Close)
}

func (r *rig) start() {
	r.Helper()
	r.open()
	r.d.Start()
}

// restart is another start of the daemon.
func (r *rig) restart() {
	r.Helper()
	r.d.Close()
	r.start()
}

// put puts a file into the directory at one moment, and old enough to be read at once.
func (r *rig) put(name, text string) {
	r.Helper()
	r.ok(os.WriteFile(filepath.Join(r.dir, "."+name), []byte(text), 0o644))
	r.ok(os.Rename(filepath.Join(r.dir, "."+name), r.path(name)))
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits for something.
// eventually waits for longer than a look at ten thousand files makes the next one wait on a busy machine.
func (r *rig) eventually(what string, f func() bool) {
	r.Helper()
	for deadline := time.Now().Add(timeouts.For(2 * time.Minute)); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("waited in vain until %s; imported %q, pulled %q, pinned %q, problems %v", what,
				few(of(r.store, imported)), few(of(r.store, asked)), few(of(r.store, pinned)), r.d.Problems())
		}
	}
}

// few are the last of many.
func few(names []string) []string { return names[max(0, len(names)-10):] }

func (r *rig) has(names ...string) {
	r.Helper()
	r.eventually(fmt.Sprint("there is ", names), func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, there := r.Get(name); return !there })
	})
}

// problem waits for a problem of a file that says something; of none where that is empty.
func (r *rig) problem(path, says string) {
	r.Helper()
	r.eventually(fmt.Sprintf("%s has the problem %q", path, says), func() bool {
		for _, p := range r.d.Problems() {
			if p.Path == path {
				return says != "" && strings.Contains(p.Message, says)
			}
		}
		return says == ""
	})
}

// quiet wants nothing more to be imported or pulled for a while.
func (r *rig) quiet() {
	r.Helper()
	before := len(of(r.store, imported)) + len(of(r.store, asked))
	time.Sleep(1500 * time.Millisecond) // a look that nothing has asked for is in it
	if after := len(of(r.store, imported)) + len(of(r.store, asked)); after != before {
		r.Errorf("more is taken in: imported %q, pulled %q", of(r.store, imported), of(r.store, asked))
	}
}

func (r *rig) wantPins(names ...string) {
	r.Helper()
	r.eventually(fmt.Sprint("pinned are ", names), func() bool { return slices.Equal(of(r.store, pinned), names) })
}

var errRegistry = errors.New("the registry does not answer")
