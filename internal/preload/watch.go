package preload

import (
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// watch tells of changes in a directory. What it misses is seen by the next look, which comes sooner where it is blind.
type watch struct {
	path    string
	log     *slog.Logger
	changed chan struct{} // gets an element when something has changed
	notify  *fsnotify.Watcher
	inode   uint64 // of the directory that is watched; 0 for none
}

func newWatch(path string, log *slog.Logger) *watch {
	w := &watch{path: path, log: log, changed: make(chan struct{}, 1)}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		w.log.Warn("changes of the directory of images are seen late", "error", err)
		return w
	}
	go w.pass()
	return w
}

// pass passes changes on, as one for those that come at once, until the watch is closed.
func (w *watch) pass() {
	for {
		select {
		case _, open := <-w.notify.Events:
			if !open {
				return
			}
		case _, open := <-w.notify.Errors: // such as events that were lost
			if !open {
				return
			}
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// follow watches the directory that is at the path now.
func (w *watch) follow(dir *os.File) {
	var st unix.Stat_t
	if w.notify == nil || unix.Fstat(int(dir.Fd()), &st) != nil || st.Ino == w.inode && len(w.notify.WatchList()) > 0 {
		return
	}
	w.lose()
	if err := w.notify.Add(w.path); err != nil {
		w.log.Debug("the directory of images is not watched", "error", err)
		return
	}
	w.inode = st.Ino
}

// lose stops watching.
func (w *watch) lose() {
	if w.inode != 0 {
		_ = w.notify.Remove(w.path) // it may be gone already
		w.inode = 0
	}
}

// every is how often to look while nothing is heard.
func (w *watch) every(p pace) time.Duration {
	if w.inode != 0 {
		return p.every
	}
	return p.blind
}

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
