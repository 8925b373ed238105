package network

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/internal/inotify"
)

const (
	gather = 5 * time.Millisecond  // from the first event of a burst to the look at its effect
	settle = 50 * time.Millisecond // how long a configuration may be bad in the middle of being changed
)

// Times that tests change.
var (
	settleMax = time.Second     // how long it may be bad at most, if changes go on
	blind     = 5 * time.Second // from look to look while the kernel does not tell of changes
)

// watcher calls look when something at or below one of its paths changes: also when a directory on the way there is
// removed, made, renamed, or a symbolic link on the way is pointed elsewhere. While the kernel does not tell of changes
// (its limits of inotify are those of all processes of a user) it calls look from time to time.
type watcher struct {
	paths []string
	look  func(final bool) (beside []string, putOff bool)

	log     *slog.Logger
	notify  *fsnotify.Watcher // nil while there is none
	unseen  bool              // the log says that changes are seen late
	beside  []string
	seen    trail
	marks   string            // of the files, at the last look
	ids     map[string]uint64 // inode of each directory that is watched
	stop    chan struct{}
	ending  sync.Once
	stopped sync.WaitGroup
}

// newWatcher watches, takes a first look, and goes on in the background.
func newWatcher(paths []string, look func(bool) ([]string, bool), log *slog.Logger) *watcher {
	w := &watcher{paths: paths, look: look, log: log, ids: map[string]uint64{}, stop: make(chan struct{})}
	_, err := w.update(true)
	next := time.NewTimer(time.Hour)
	w.arm(next, err)
	w.stopped.Go(func() { w.run(next) })
	return w
}

// newNotify is fsnotify.NewWatcher, but for a test.
var newNotify = fsnotify.NewWatcher

// open has the kernel tell of changes.
func (w *watcher) open() (err error) {
	if w.notify == nil {
		w.notify, err = newNotify()
	}
	return inotify.Explain(err)
}

// arm has the timer bring the next look where an update failed, and else stops it.
func (w *watcher) arm(timer *time.Timer, failed error) {
	timer.Stop()
	if failed != nil {
		timer.Reset(blind)
	}
	switch {
	case failed != nil && !w.unseen:
		w.log.Warn("changes of the CNI configuration are seen late", "every", blind, "error", failed)
	case failed == nil && w.unseen:
		w.log.Info("changes of the CNI configuration are seen at once again")
	}
	w.unseen = failed != nil
}

func (w *watcher) close() (err error) {
	w.ending.Do(func() { close(w.stop) })
	w.stopped.Wait()
	if w.notify != nil {
		err = w.notify.Close()
	}
	return err
}

// heard are the kernel's channels, which never have anything while it does not tell of changes.
func (w *watcher) heard() (events chan fsnotify.Event, lost chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

func (w *watcher) run(timer *time.Timer) {
	armed := false
	var last, firstBad time.Time
	for {
		events, lost := w.heard()
		select {
		case <-w.stop:
			return
		case e := <-events:
			if !w.take(e) {
				continue
			}
			last = time.Now()
		case <-lost: // such as events
			last = time.Now()
		case <-timer.C:
			armed = false
			if w.pending() || w.stirred() {
				last = time.Now() // the timer won against an event that came before it, or will come
			}
			due := !firstBad.IsZero() && (time.Since(last) >= settle || time.Since(firstBad) >= settleMax)
			putOff, err := w.update(due)
			w.arm(timer, err)
			switch {
			case !putOff:
				firstBad = time.Time{}
			case firstBad.IsZero():
				firstBad = time.Now()
				fallthrough
			default:
				timer.Reset(settle)
			}
			continue
		}
		if !armed {
			timer.Reset(gather)
			armed = true
		}
	}
}

// pending takes the events that are waiting, and says whether one of them matters.
func (w *watcher) pending() (matters bool) {
	events, _ := w.heard()
	for {
		select {
		case e := <-events:
			matters = w.take(e) || matters
		default:
			return matters
		}
	}
}

// stirred reports whether files have changed since the last look: on a busy machine events come late.
func (w *watcher) stirred() bool { return w.seen.marks() != w.marks }

// take reports whether an event matters. The watch of a directory that went is gone with it, and the one that came in
// its place may have its very inode.
func (w *watcher) take(e fsnotify.Event) bool {
	if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		delete(w.ids, e.Name)
	}
	return w.seen.concerns(e.Name)
}

// update looks, with all directories watched that the answer depends on. What changes between the look and the watch is
// looked at again.
func (w *watcher) update(final bool) (putOff bool, err error) {
	for range 10 {
		_, before := w.follow()
		w.beside, putOff = w.look(final)
		fresh, after := w.follow()
		if err := cmp.Or(before, after); err != nil || !fresh {
			return putOff, err
		}
	}
	return true, nil // it changes faster than it can be followed: come back later
}

// follow watches what is on the trail of the paths now, and says whether that is anything new.
func (w *watcher) follow() (fresh bool, err error) {
	t := trail{dirs: map[string]uint64{}, names: map[string]bool{}, leaves: map[string]bool{}}
	for _, path := range slices.Concat(w.paths, w.beside) {
		t.add(path)
	}
	w.seen, w.marks = t, t.marks()
	if err := w.open(); err != nil {
		return false, err
	}
	for dir, id := range w.ids {
		if t.dirs[dir] != id {
			_ = w.notify.Remove(dir) // it may be gone already
			delete(w.ids, dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(t.dirs)) {
		if _, ok := w.ids[dir]; ok {
			continue
		}
		err := inotify.Explain(w.notify.Add(dir))
		switch {
		case err == nil:
			w.ids[dir], fresh = t.dirs[dir], true
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			fresh = true // it went since; look again
		default:
			return fresh, fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	return fresh, nil
}

// trail is what the meaning of some paths depends on.
type trail struct {
	dirs   map[string]uint64 // real directories that are passed, with their inodes
	names  map[string]bool   // real paths of all that is passed, or would be
	leaves map[string]bool   // directories at the end of a path
}

// concerns reports whether a change of the file of that name matters.
func (t trail) concerns(name string) bool {
	_, dir := t.dirs[name]
	return dir || t.names[name] || t.leaves[filepath.Dir(name)]
}

// add walks an absolute path as the kernel would, as far as it leads.
func (t trail) add(path string) {
	at, rest := "/", split(path)
	t.visit(at)
	for links := 0; len(rest) > 0 && links < 40; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		t.names[next] = true
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(next)
			if err != nil {
				return
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = slices.Concat(split(target), rest)
			links++
		case info.IsDir():
			at = next
			t.visit(at)
		default:
			return // a file: changes of it are seen in its directory
		}
	}
	t.leaves[at] = true
}

// marks are what each writing changes of the files at the end of the paths.
func (t trail) marks() string {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(t.leaves)) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
				fmt.Fprintln(&b, info.Name(), info.Mode(), info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return b.String()
}

func (t trail) visit(dir string) {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) == nil {
		t.dirs[dir] = st.Ino
	}
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}
