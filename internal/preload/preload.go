// Package preload takes in the images that a directory of the node says are to be there: archives, which it imports,
// and lists of names, which it pulls.
package preload

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"berth/internal/fail"
	"berth/internal/image"
	"berth/internal/image/progress"
	"berth/internal/op"
)

// Store is where the images go. An import or a pull may be repeated, and ends soon after its context does.
type Store interface {
	Import(ctx context.Context, archive io.Reader, tell func(progress.Event)) ([]image.Image, error)
	Pull(ctx context.Context, req image.PullRequest) (image.Image, error)
	Get(nameOrID string) (image.Image, bool)
}

// Config says what a Directory is.
type Config struct {
	Path  string // of the directory, which need not be there
	Pin   bool   // its images are kept from garbage collection
	Store Store
	// SetPins pins the images of these names and ids, and no others of an earlier call.
	SetPins func([]string)
	// Record is the path of the record of what was taken in.
	Record string
	// Dirty is told of the record each time that it should become durable soon. May be nil.
	Dirty func(path string)
	Log   *slog.Logger
}

// Directory is a directory whose images are taken in.
type Directory struct {
	Config
	pace     pace
	problems problems
	stop     context.CancelFunc
	over     chan struct{} // closed when it does no more
	again    chan struct{} // gets an element when what has failed is to be tried at once

	abandoned atomic.Bool // it did not end when it was closed, and writes no record any more
}

// Problem is something that is wrong with the directory, or with what is in it.
type Problem struct {
	Path    string
	Message string
	Since   time.Time
}

// pace is how fast things are done. Tests have their own.
type pace struct {
	gather  time.Duration // from the first event of a burst to the look at its effect
	settled time.Duration // for which a file has to stay as it is before it is read
	busy    time.Duration // from look to look while a file is being written, or an image is not on the disk yet
	every   time.Duration // from look to look while nothing happens
	blind   time.Duration // the same while the directory cannot be watched
	retry   op.Backoff
}

var usualPace = pace{
	gather: 300 * time.Millisecond, settled: time.Second, busy: time.Second, every: time.Minute, blind: 5 * time.Second,
	retry: op.Backoff{First: 10 * time.Second, Max: 5 * time.Minute},
}

// Open reads what was taken in before, and pins it. Nothing is looked at, and nothing begins, before Start: so it takes
// no time that depends on the directory.
func Open(c Config) *Directory {
	if c.Dirty == nil {
		c.Dirty = func(string) {}
	}
	d := &Directory{Config: c, pace: usualPace, over: make(chan struct{}), again: make(chan struct{}, 1)}
	m, err := readMemory(c.Record, c.Path)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(c.Record), 0o700)
	}
	if err != nil {
		d.Log.Warn("the record of the directory of images cannot be read: its images are taken in again", "error", err)
	}
	var names []string
	if d.Pin {
		names = m.pins()
	}
	d.SetPins(names)
	return d
}

// Start begins to take in the images, in the background.
func (d *Directory) Start() {
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	go func() {
		defer close(d.over)
		newIntake(d).run(ctx)
	}()
}

// closing is how long Close waits: what stands still with the disk of the directory may do so for ever.
const closing = 5 * time.Second

// Close ends what goes on. It waits no longer than a few seconds for that.
func (d *Directory) Close() {
	if d.stop == nil {
		return
	}
	d.stop()
	select {
	case <-d.over:
	case <-time.After(closing):
		d.abandoned.Store(true)
		d.Log.Warn("the directory of images does not answer", "path", d.Path)
	}
}

// TryAgain has what has failed be tried at once.
func (d *Directory) TryAgain() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

func (d *Directory) pathOf(name string) string { return filepath.Join(d.Path, name) }

// tell says what is wrong with something, once.
func (d *Directory) tell(k key, path string, err error) {
	if err == nil {
		d.problems.set(k, path, "")
	} else if d.problems.set(k, path, fail.Clip(err.Error())) {
		d.Log.Warn("the directory of images, or a file in it, cannot be used", "path", path, "error", err)
	}
}

// Problems tells what is wrong. It never waits.
func (d *Directory) Problems() []Problem { return d.problems.list() }
