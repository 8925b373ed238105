package preload

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image"
)

// errUnsettled says that a file is not yet, or no longer, what it is to be.
var errUnsettled = errors.New("somebody writes to it")

// never is when to try again what cannot come right by itself.
var never = time.Unix(1<<40, 0)

// retryAt is when to try again what has failed n times in a row.
func (p pace) retryAt(n int, err error) time.Time {
	switch fail.KindOf(err).Err {
	case errdefs.ErrInvalidArgument, errdefs.ErrDataLoss, errdefs.ErrPermissionDenied,
		errdefs.ErrNotFound,           // no image for this platform
		errdefs.ErrFailedPrecondition: // nothing that can be unpacked here
		return never
	}
	return time.Now().Add(p.retry.After(n))
}

// readWhole has a file of a directory read, as it was seen. What came of one that changes meanwhile counts for nothing.
func readWhole[T any](dir, name string, id identity, read func(*os.File) (T, error)) (none T, err error) {
	f, now, err := openFile(dir, name)
	if err != nil {
		return none, err
	}
	defer f.Close()
	if now != id || isWritten(f) {
		return none, errUnsettled
	}
	v, err := read(f)
	if !still(f, id) {
		return none, errUnsettled
	}
	return v, err
}

// beginImport imports an archive in the background. There is one at a time: each takes room for all of its content. The
// images of one that changes meanwhile are whole all the same, since each layer is proven.
func (in *intake) beginImport(ctx context.Context, name string, f *file) {
	in.reads = name
	id := f.identity
	go func() {
		images, err := readWhole(in.dir.Path, name, id, func(f *os.File) ([]image.Image, error) {
			return in.dir.Store.Import(ctx, f, nil)
		})
		end(ctx, in.ended, func() { in.imported(name, id, images, err) })
	}()
}

// end has the intake do what follows from something that has ended.
func end(ctx context.Context, ended chan<- func(), f func()) {
	select {
	case ended <- f:
	case <-ctx.Done():
	}
}

// imported notes how an import has ended, and has the directory be looked at when the archive may be read again.
func (in *intake) imported(name string, id identity, images []image.Image, err error) {
	in.reads = ""
	f := in.files[name]
	if f == nil || f.identity != id {
		return // it is another file by now, or none
	}
	defer func() { in.lookAt = soonest(in.lookAt, f.due) }()
	if errors.Is(err, errUnsettled) {
		f.due = time.Now().Add(in.dir.pace.busy)
		return
	}
	in.dir.tell(key{name, read}, in.dir.pathOf(name), err)
	if err != nil {
		f.failures++
		f.due = in.dir.pace.retryAt(f.failures, err)
		return
	}
	f.failures, f.due = 0, time.Now().Add(in.dir.pace.every) // in case that its images are removed again and again
	in.ledger.put(name, &taken{identity: id, Images: imagesOf(images)})
	in.dir.Log.Info("the images of an archive are there", "path", in.dir.pathOf(name), "images", len(images))
}

// readList reads a list. Of one that is partly wrong the rest is used. One that cannot be read is tried again, and what
// it had before stays until then.
func (in *intake) readList(name string, f *file, now time.Time) {
	l, err := readWhole(in.dir.Path, name, f.identity, func(f *os.File) (listed, error) {
		names, wrong, err := readNames(f)
		return listed{names, wrong}, err
	})
	if errors.Is(err, errUnsettled) {
		f.due = now.Add(in.dir.pace.busy)
		return
	}
	in.dir.tell(key{name, read}, in.dir.pathOf(name), errors.Join(err, l.wrong))
	if err != nil {
		f.failures++
		f.due = in.dir.pace.retryAt(f.failures, err)
		return
	}
	f.read, f.failures, f.due = true, 0, time.Time{}
	t := in.ledger.Files[name]
	// Of one that could not be read earlier releases have noted that it is empty.
	if t == nil || t.identity != f.identity || !slices.Equal(t.Names, l.names) {
		in.ledger.put(name, &taken{identity: f.identity, Names: l.names, Pulled: map[string]bool{}})
	}
}

// listed is what a list has, and what is wrong with its other lines.
type listed struct {
	names []string
	wrong error
}
