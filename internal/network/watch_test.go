package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/test/timeouts"
)

func asCIDRError(err error) (*CIDRError, bool) {
	var bad *CIDRError
	return bad, errors.As(err, &bad)
}

func conf(name string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "bridge"}]}`, name)
}

// at is the name of the network in force, "" when there is none.
func (h *host) at() string {
	st := h.Status()
	if st.Ready != (st.Message == "") || st.Ready != (st.Reason == "") || !st.Ready && st.Reason != NotReady {
		h.t.Errorf("status contradicts itself: %+v", st)
	}
	return st.Network
}

// eventually waits for a network to be in force, and fails when it takes longer than a change may, not counting what
// the machine kept this very goroutine from running.
func (h *host) eventually(t *testing.T, want string) {
	t.Helper()
	begun := time.Now()
	var stalled time.Duration
	for h.at() != want {
		if time.Since(begun) > timeouts.For(30*time.Second) {
			t.Fatalf("still %q after %v: %s", h.at(), time.Since(begun), h.Status().Message)
		}
		before := time.Now()
		time.Sleep(time.Millisecond)
		stalled += max(0, time.Since(before)-2*time.Millisecond)
	}
	if took := time.Since(begun); took-2*stalled > 100*time.Millisecond && !slow {
		t.Errorf("%q came after %v, of which this test stalled for %v", want, took, stalled)
	}
}

// never watches that the network in force stays the same while f makes changes. It means nothing if the machine kept f
// from making one for as long as a change may be believed; f says how long it paused at most.
func (h *host) never(t *testing.T, f func() (pause time.Duration)) {
	t.Helper()
	want, stop := h.at(), make(chan struct{})
	got := want
	var all sync.WaitGroup
	all.Go(func() {
		for got == want {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
				got = h.at()
			}
		}
	})
	pause := f()
	time.Sleep(2 * settle)
	close(stop)
	all.Wait()
	switch {
	case got == want:
	case pause >= settle:
		t.Logf("%q became %q, but a change took %v", want, got, pause)
	default:
		t.Errorf("%q became %q, although no change took longer than %v", want, got, pause)
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestWatchFollowsInode replaces the directory by one that has its inode, which some file systems do at once, faster
// than one can look.
func TestWatchFollowsInode(t *testing.T) {
	h := newHost(t, "")
	dir := h.cfg.ConfigDir
	for i := range 20 {
		must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		time.Sleep(4 * gather) // the look sees the new directory
		name := fmt.Sprint("n", i)
		h.write("10-test.conflist", conf(name))
		h.eventually(t, name)
	}
}

func TestWatch(t *testing.T) {
	h := newHost(t, "")
	dir := h.cfg.ConfigDir
	file := filepath.Join(dir, "10-test.conflist")
	if h.at() != "" {
		t.Fatal(h.at())
	}
	h.write("10-test.conflist", conf("a"))
	h.eventually(t, "a")
	must(t, os.WriteFile(dir+"/.new", []byte(conf("b")), 0o644), os.Rename(dir+"/.new", file)) // replaced
	h.eventually(t, "b")
	h.write("05-first.conflist", conf("c"))
	h.eventually(t, "c")
	must(t, os.Remove(dir+"/05-first.conflist"))
	h.eventually(t, "b")
	must(t, os.Remove(file))
	h.eventually(t, "")
	must(t, os.Remove(dir)) // the directory comes back
	must(t, os.Mkdir(dir, 0o755))
	h.write("10-test.conflist", conf("d"))
	h.eventually(t, "d")
	must(t, os.RemoveAll(filepath.Dir(dir))) // and its parent
	h.eventually(t, "")
	must(t, os.MkdirAll(dir, 0o755))
	h.write("10-test.conflist", conf("e"))
	h.eventually(t, "e")
	must(t, os.Rename(filepath.Dir(dir), filepath.Dir(dir)+".old")) // renamed away: its watches go with it
	h.eventually(t, "")
	must(t, os.MkdirAll(dir, 0o755))
	h.write("10-test.conflist", conf("f"))
	h.eventually(t, "f")
	must(t, os.Rename(dir, dir+".old"), os.Rename(filepath.Dir(dir)+".old/net.d", dir)) // swapped for another
	h.eventually(t, "e")
	h.write("10-test.conflist", "{")
	h.eventually(t, "")
	if m := h.Status().Message; !strings.Contains(m, file+": line 1, column 1: unexpected end of JSON input") {
		t.Errorf("%s", m)
	}
}

func TestHalfWrittenIsNotBelieved(t *testing.T) {
	h := newHost(t, conf("a"))
	file := filepath.Join(h.cfg.ConfigDir, "10-test.conflist")
	var pause time.Duration
	last := time.Now()
	step := func(err error) {
		t.Helper()
		must(t, err)
		pause, last = max(pause, time.Since(last)), time.Now()
	}
	h.never(t, func() time.Duration {
		for range 5 { // truncated, then written in pieces, slower than events are gathered
			f, err := os.Create(file)
			step(err)
			for _, piece := range strings.SplitAfter(conf("a"), ",") {
				time.Sleep(2 * gather)
				_, err := f.WriteString(piece)
				step(err)
			}
			step(f.Close())
		}
		step(os.Remove(file))
		time.Sleep(2 * gather)
		step(os.WriteFile(file, []byte(conf("a")), 0o644))
		return pause
	})
	must(t, os.WriteFile(file, []byte("{"), 0o644)) // what stays half written is believed in the end
	h.eventually(t, "")
}

// TestChangesWhoseEventsAreLate has a file written slower than it settles for who is told of the first change only.
func TestChangesWhoseEventsAreLate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "10-test.conflist")
	believed := make(chan string, 100)
	look := func(final bool) ([]string, bool) {
		if data, err := os.ReadFile(file); final && err == nil {
			believed <- string(data)
		}
		return nil, !final
	}
	notify, err := fsnotify.NewWatcher()
	must(t, err)
	w := &watcher{paths: []string{dir}, look: look, log: slog.New(slog.DiscardHandler), notify: notify,
		ids: map[string]uint64{}, stop: make(chan struct{})}
	_, err = w.update(true)
	must(t, err)
	events := make(chan fsnotify.Event, 1)
	notify.Events = events
	w.stopped.Go(func() { w.run(time.NewTimer(time.Hour)) })
	defer func() { must(t, w.close()) }()
	var pause time.Duration
	begun := time.Now()
	last := begun
	for i := range 40 {
		must(t, os.WriteFile(file, []byte(strings.Repeat("x", i+1)), 0o644))
		pause, last = max(pause, time.Since(last)), time.Now()
		if i == 0 {
			events <- fsnotify.Event{Name: file, Op: fsnotify.Create}
		}
		time.Sleep(2 * gather)
	}
	select {
	case got := <-believed:
		if pause < settle && last.Sub(begun) < settleMax && len(got) < 40 {
			t.Errorf("%d bytes of 40 were believed, although no change took longer than %v, and all %v", len(got), pause,
				last.Sub(begun))
		}
	case <-time.After(timeouts.For(30 * time.Second)):
		t.Error("what is there is not believed")
	}
}

// TestWatchWithoutTheKernel opens a network, and opens it at other places, while processes of the same user have taken
// all that the kernel's limits of inotify allow: changes are seen late. When there is room again they are seen at once.
func TestWatchWithoutTheKernel(t *testing.T) {
	was := blind
	blind = 20 * time.Millisecond
	var log logged
	var full atomic.Bool
	full.Store(true)
	newNotify = func() (*fsnotify.Watcher, error) {
		if full.Load() {
			return nil, os.NewSyscallError("inotify_init1", syscall.EMFILE)
		}
		return fsnotify.NewWatcher()
	}
	t.Cleanup(func() { blind, newNotify = was, fsnotify.NewWatcher })
	h := newHost(t, "", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	h.write("10-a.conflist", conf("a"))
	h.eventually(t, "a")
	other := h.cfg
	other.ConfigDir = t.TempDir()
	h.Reconfigure(other)
	if got := h.at(); got != "" {
		t.Errorf("at an empty place: %q", got)
	}
	must(t, os.WriteFile(filepath.Join(other.ConfigDir, "10-b.conflist"), []byte(conf("b")), 0o644))
	h.eventually(t, "b")
	time.Sleep(5 * blind)
	const late = "seen late"
	if said := log.String(); strings.Count(said, late) != 2 || !strings.Contains(said, "max_user_instances") {
		t.Errorf("logged: %s", said)
	}
	full.Store(false)
	for begun := time.Now(); !strings.Contains(log.String(), "at once again"); time.Sleep(time.Millisecond) {
		if time.Since(begun) > timeouts.For(30*time.Second) {
			t.Fatalf("the kernel is not asked again: %s", log.String())
		}
	}
	must(t, os.WriteFile(filepath.Join(other.ConfigDir, "10-b.conflist"), []byte(conf("c")), 0o644))
	h.eventually(t, "c")
}

// TestHalfWrittenWithoutTheKernel has a configuration be bad for a moment while changes are not told, often enough that
// looks fall into it: it is not believed.
func TestHalfWrittenWithoutTheKernel(t *testing.T) {
	was, most := blind, settleMax
	blind, settleMax = 15*time.Millisecond, time.Hour // on a busy machine the changes below take longer than a second
	newNotify = func() (*fsnotify.Watcher, error) { return nil, os.NewSyscallError("inotify_init1", syscall.EMFILE) }
	t.Cleanup(func() { blind, settleMax, newNotify = was, most, fsnotify.NewWatcher })
	h := newHost(t, "")
	h.write("10-a.conflist", conf("a"))
	h.eventually(t, "a")
	file, believed := filepath.Join(h.cfg.ConfigDir, "10-a.conflist"), 0
	for range 40 {
		wrote := time.Now() // it is empty, and so bad, before it is written
		must(t, os.WriteFile(file, []byte(`{"cni`), 0o644))
		time.Sleep(10 * time.Millisecond)
		must(t, os.WriteFile(file, []byte(conf("a")), 0o644))
		if h.at() == "" && time.Since(wrote) < settle {
			believed++
		}
		h.eventually(t, "a")
	}
	if believed > 0 {
		t.Errorf("%d of 40 half-written configurations were believed", believed)
	}
	must(t, os.WriteFile(file, []byte(`{"cni`), 0o644))
	h.eventually(t, "") // one that stays bad
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestWatchThroughLinks(t *testing.T) {
	h := newHost(t, "", func(c *Config) { c.ConfigDir = filepath.Join(filepath.Dir(filepath.Dir(c.ConfigDir)), "link") })
	base := filepath.Dir(h.cfg.ConfigDir)
	put := func(path, name string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(conf(name)), 0o644))
	}
	link := func(target, path string) {
		t.Helper()
		must(t, os.Symlink(target, path+".tmp"), os.Rename(path+".tmp", path))
	}
	must(t, os.Remove(h.cfg.ConfigDir))
	put(base+"/one/10.conflist", "a")
	put(base+"/two/10.conflist", "b")
	link("one", h.cfg.ConfigDir) // the directory is a link
	h.eventually(t, "a")
	link(base+"/two", h.cfg.ConfigDir)
	h.eventually(t, "b")
	put(base+"/two/10.conflist", "c")
	h.eventually(t, "c")
	put(base+"/far/conf", "d")
	link("../far/conf", base+"/two/10.conflist") // the file is a link
	h.eventually(t, "d")
	put(base+"/far/conf", "e")
	h.eventually(t, "e")
	put(base+"/two/..1/10.conflist", "f") // as Kubernetes mounts a config map
	link("..1", base+"/two/..data")
	link("..data/10.conflist", base+"/two/10.conflist")
	h.eventually(t, "f")
	put(base+"/two/..2/10.conflist", "g")
	link("..2", base+"/two/..data")
	h.eventually(t, "g")
	link("link", h.cfg.ConfigDir) // a loop
	h.eventually(t, "")
	link("two", h.cfg.ConfigDir)
	h.eventually(t, "g")
}

func TestPluginsComeAndGo(t *testing.T) {
	bin := ""
	h := newHost(t, conf("a"), func(c *Config) {
		bin = filepath.Join(c.CacheDir, "../opt/cni/bin")
		c.PluginDirs = []string{bin}
	})
	if m := h.Status().Message; !strings.Contains(m, `CNI plugin "bridge" is not an executable file in `+bin) {
		t.Errorf("%s", m)
	}
	must(t, os.MkdirAll(bin, 0o755), os.WriteFile(bin+"/bridge", []byte("#!/bin/sh"), 0o644))
	time.Sleep(settle)
	if h.at() != "" {
		t.Error("ready with a plugin that cannot be executed")
	}
	must(t, os.Chmod(bin+"/bridge", 0o755))
	h.eventually(t, "a")
	must(t, os.Remove(bin+"/bridge"))
	h.eventually(t, "")
}

// TestIPAMElsewhere attaches a pod to a network whose ipam section names a program that is not on the node, as that of
// Antrea, whose agent runs it in its own pod. The log tells of it, and not of one that is there.
func TestIPAMElsewhere(t *testing.T) {
	var told atomic.Pointer[slog.Record]
	dir, change := script(t, "agent", spy)
	list := func(name, ipam string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "agent", "ipam": {"type": %q}}]}`, name,
			ipam)
	}
	h := newHost(t, list("a", "elsewhere"), change, func(c *Config) { c.Logger = slog.New(warnings{&told}) })
	if st := h.Status(); !st.Ready {
		t.Fatalf("%+v", st)
	}
	p := h.pod()
	if r := h.attach(p); len(r.IPs) != 1 {
		t.Errorf("%+v", r)
	}
	h.detach(p)
	if w := told.Load(); w == nil || !strings.Contains(w.Message, "ipam") {
		t.Errorf("told of the missing program: %v", w)
	}
	told.Store(nil)
	must(t, os.WriteFile(dir+"/here", []byte("#!/bin/sh"), 0o755))
	h.write("10-test.conflist", list("b", "here"))
	h.eventually(t, "b")
	if w := told.Load(); w != nil {
		t.Errorf("told of a program that is there: %v", w)
	}
}

// warnings is a log that keeps the last warning.
type warnings struct{ last *atomic.Pointer[slog.Record] }

func (warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	w.last.Store(&r)
	return nil
}
func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w warnings) WithGroup(string) slog.Handler      { return w }

func TestCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	h := newHost(t, conf("a"))
	must(t, h.Close())
	for end := time.Now().Add(timeouts.For(30 * time.Second)); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, were %d", now, before)
	}
	h.open()
}
