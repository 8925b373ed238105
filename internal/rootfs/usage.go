package rootfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrIncomplete says that a walk has not seen all: what it returns is the least that is there.
var ErrIncomplete = errors.New("not all of the tree could be looked at")

// The bounds of a walk. Containers make the trees, and may mean to hide in them.
const (
	// topFrames and lastFrames are how many directories a walk holds open: the uppermost, to which it can return whatever
	// is moved below them, and those that it entered last.
	topFrames, lastFrames = 32, 32
	// mostDepth is how deep a walk goes. Each level above has been counted then, which is 400 MB on most file systems.
	mostDepth = 100_000
	// mostLinks is how many files with several names a walk tells apart. Of more of them each name counts its share.
	mostLinks = 100_000
	// direntBytes is how much of a directory is read at once.
	direntBytes = 8 << 10
)

// Usage walks upper and counts the bytes on disk and the inodes there, a file with several names once. It looks at no
// more than perSecond entries a second (0 is as fast as it goes), ends with ctx, never crosses a mount, and does not
// mind what vanishes meanwhile. Directories may be nested without end. What cannot be read it passes over, and what is
// left when ctx ends: it returns what it has counted, and ErrIncomplete with the reason. fs.ErrNotExist when upper is
// not there.
func Usage(ctx context.Context, upper string, perSecond int) (bytes, inodes uint64, err error) {
	return (&walk{ctx: ctx, pace: perSecond}).over(upper)
}

// over walks a tree and returns what it has counted.
func (w *walk) over(upper string) (bytes, inodes uint64, err error) {
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("usage: %w", &os.PathError{Op: "open", Path: upper, Err: err})
	}
	w.start, w.seen = time.Now(), map[uint64]struct{}{}
	defer w.close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return 0, 0, fmt.Errorf("usage of %s: %w", upper, err)
	}
	if w.counts == nil || w.counts(unix.AT_FDCWD, upper, &st) {
		w.count(&st)
	}
	w.enter(fd, st.Ino)
	if err := w.run(); err != nil {
		w.missed = err
	}
	bytes, inodes = w.total()
	if w.missed != nil {
		return bytes, inodes, fmt.Errorf("usage of %s: %w: %w", upper, ErrIncomplete, w.missed)
	}
	return bytes, inodes, nil
}

// walk is one Usage in progress.
type walk struct {
	ctx     context.Context
	pace    int
	start   time.Time
	entries int
	seen    map[uint64]struct{}                             // inodes with several names
	counts  func(at int, name string, st *unix.Stat_t) bool // whether an entry is counted; nil is all

	bytes, inodes uint64
	shares        struct{ bytes, inodes float64 } // of files with several names that are not told apart
	missed        error                           // why something was passed over; the first reason

	frames []frame // the directories from the top to the one that is read
}

// frame is a directory of the walk.
type frame struct {
	ino  uint64
	next int64 // where in the directory the entry after the last one is
	open *openFrame
}

// openFrame is a directory that is held open.
type openFrame struct {
	fd   int
	rest []byte // entries that were read and not looked at
}

func (w *walk) run() error {
	for len(w.frames) > 0 {
		name, more := w.nextEntry()
		if !more {
			w.leave()
			continue
		}
		if err := w.wait(); err != nil {
			return err
		}
		w.entry(name)
	}
	return nil
}

// entry counts an entry of the innermost directory, and enters it where it is a directory itself.
func (w *walk) entry(name string) {
	at := w.frames[len(w.frames)-1].open.fd
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		w.miss(err)
		return
	}
	counted := w.counts == nil || w.counts(at, name, &st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if counted {
			w.count(&st)
		}
		return
	}
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	switch {
	case errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return // a mount, or something else by now
	case errors.Is(err, unix.ENOENT):
		return
	case err != nil:
		w.miss(err)
	}
	if counted {
		w.count(&st)
	}
	if err != nil {
		return
	}
	if len(w.frames) >= mostDepth {
		_ = unix.Close(fd)
		w.miss(fmt.Errorf("directories are nested more than %d deep", mostDepth))
		return
	}
	w.enter(fd, st.Ino)
}

// enter goes on in a directory. One between the uppermost and the last ones is closed for it.
func (w *walk) enter(fd int, ino uint64) {
	w.frames = append(w.frames, frame{ino: ino, open: &openFrame{fd: fd}})
	if old := len(w.frames) - 1 - lastFrames; old >= topFrames {
		w.frames[old].close()
	}
}

// leave goes back to the directory above, which may have to be opened again: by the way up from the one that is left. A
// container that moves directories meanwhile may have it lead elsewhere; then the walk goes on in the nearest one that
// is open still.
func (w *walk) leave() {
	last := len(w.frames) - 1
	child := w.frames[last]
	w.frames = w.frames[:last]
	defer child.close()
	if last == 0 || w.frames[last-1].open != nil {
		return
	}
	parent := &w.frames[last-1]
	if err := parent.reopen(child.open.fd); err != nil {
		w.miss(err)
		for len(w.frames) > 0 && w.frames[len(w.frames)-1].open == nil {
			w.frames = w.frames[:len(w.frames)-1]
		}
	}
}

// reopen opens a directory again as the one above another, and goes to where it was read.
func (f *frame) reopen(child int) error {
	fd, err := unix.Openat(child, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Ino != f.ino {
		err = errors.New("directories were moved meanwhile")
	}
	if err == nil {
		_, err = unix.Seek(fd, f.next, unix.SEEK_SET)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	f.open = &openFrame{fd: fd}
	return nil
}

func (f *frame) close() {
	if f.open != nil {
		_ = unix.Close(f.open.fd)
		f.open = nil
	}
}

func (w *walk) close() {
	for i := range w.frames {
		w.frames[i].close()
	}
}

// nextEntry reads the next name of the innermost directory; there are no more when it returns false.
func (w *walk) nextEntry() (name string, more bool) {
	f := &w.frames[len(w.frames)-1]
	for {
		if len(f.open.rest) == 0 {
			buf := make([]byte, direntBytes)
			n, err := unix.Getdents(f.open.fd, buf)
			if err != nil && !errors.Is(err, unix.ENOENT) { // it was removed meanwhile
				w.miss(err)
			}
			if err != nil || n == 0 {
				return "", false
			}
			f.open.rest = buf[:n]
		}
		name = f.take()
		if name != "." && name != ".." {
			return name, true
		}
	}
}

// take takes the first entry of what was read: a struct linux_dirent64 of getdents64(2).
func (f *frame) take() string {
	const head = 19 // inode, offset, length, type
	rest := f.open.rest
	length := int(binary.NativeEndian.Uint16(rest[16:]))
	f.next = int64(binary.NativeEndian.Uint64(rest[8:]))
	name, _, _ := bytes.Cut(rest[head:length], []byte{0})
	f.open.rest = rest[length:]
	return string(name)
}

// miss notes that something was passed over. What has vanished was not there.
func (w *walk) miss(err error) {
	if w.missed == nil && !errors.Is(err, unix.ENOENT) {
		w.missed = err
	}
}

func (w *walk) count(st *unix.Stat_t) {
	size := uint64(st.Blocks) * 512
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if _, again := w.seen[st.Ino]; again {
			return
		}
		if len(w.seen) >= mostLinks {
			w.shares.bytes += float64(size) / float64(st.Nlink)
			w.shares.inodes += 1 / float64(st.Nlink)
			return
		}
		w.seen[st.Ino] = struct{}{}
	}
	w.inodes++
	w.bytes += size
}

func (w *walk) total() (bytes, inodes uint64) {
	return w.bytes + uint64(w.shares.bytes+0.5), w.inodes + uint64(w.shares.inodes+0.5)
}

// wait keeps the pace: every hundred entries it sleeps for as long as it is ahead.
func (w *walk) wait() error {
	w.entries++
	if w.entries%100 != 0 {
		return nil
	}
	var ahead time.Duration
	if w.pace > 0 {
		ahead = time.Duration(w.entries)*time.Second/time.Duration(w.pace) - time.Since(w.start)
	}
	if ahead <= 0 {
		return w.ctx.Err()
	}
	timer := time.NewTimer(ahead)
	defer timer.Stop()
	select {
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-timer.C:
		return nil
	}
}
