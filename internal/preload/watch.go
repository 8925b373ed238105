package preload

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"berth/internal/inotify"
)

// watch tells of changes in a directory. What it misses is seen by the next look, which comes sooner where it is blind.
type watch struct {
	path    string
	log     *slog.Logger
	changed chan struct{}                     // gets an element when something has changed
	open    func() (*fsnotify.Watcher, error) // fsnotify.NewWatcher, but for a test
	notify  *fsnotify.Watcher                 // nil while there is none
	inode   uint64                            // of the directory that is watched; 0 for none
	unseen  bool                              // the log says that changes are seen late
}

func newWatch(path string, log *slog.Logger) *watch {
	return &watch{path: path, log: log, changed: make(chan struct{}, 1), open: fsnotify.NewWatcher}
}

// pass passes changes on, as one for those that come at once, until the watch is closed.
func (w *watch) pass(notify *fsnotify.Watcher) {
	for {
		select {
		case _, open := <-notify.Events:
			if !open {
				return
			}
		case _, open := <-notify.Errors: // such as events that were lost
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

// follow watches the directory that is at the path now. Where the kernel lets it watch none, it is tried again by the
// next look.
func (w *watch) follow(dir *os.File) {
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) != nil ||
		w.notify != nil && st.Ino == w.inode && len(w.notify.WatchList()) > 0 {
		return
	}
	w.lose()
	err := w.add()
	if err == nil {
		w.inode = st.Ino
	}
	if late := err != nil && !errors.Is(err, fs.ErrNotExist); late != w.unseen {
		w.unseen = late
		if late {
			w.log.Warn("changes of the directory of images are seen late", "path", w.path, "error", err)
		} else {
			w.log.Info("changes of the directory of images are seen at once again", "path", w.path)
		}
	}
}

func (w *watch) add() error {
	if w.notify == nil {
		notify, err := w.open()
		if err != nil {
			return inotify.Explain(err)
		}
		w.notify = notify
		go w.pass(notify)
	}
	return inotify.Explain(w.notify.Add(w.path))
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
