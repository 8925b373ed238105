package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth bounds the directories a walk holds open.
const maxDepth = 1000

// Usage walks upper and counts the bytes on disk and the inodes there, a file with several names once. It looks at no more
// than perSecond entries a second (0 is as fast as it goes), ends with ctx, never crosses a mount, and does not mind what
// vanishes meanwhile. fs.ErrNotExist when upper is not there.
func Usage(ctx context.Context, upper string, perSecond int) (bytes, inodes uint64, err error) {
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("usage: %w", &os.PathError{Op: "open", Path: upper, Err: err})
	}
	dir := os.NewFile(uintptr(fd), upper)
	defer dir.Close()
	w := &walk{ctx: ctx, pace: perSecond, start: time.Now(), seen: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("usage of %s: %w", upper, err)
	}
	w.count(&st)
	if err := w.dir(dir, 0); err != nil {
		return 0, 0, fmt.Errorf("usage of %s: %w", upper, err)
	}
	return w.bytes, w.inodes, nil
}

// walk is one Usage in progress.
type walk struct {
	ctx           context.Context
	pace          int
	start         time.Time
	entries       int
	seen          map[uint64]bool // inodes with several names
	bytes, inodes uint64
}

func (w *walk) dir(dir *os.File, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directories are nested more than %d deep", maxDepth)
	}
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := w.entry(dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (w *walk) entry(parent *os.File, name string, depth int) error {
	if err := w.wait(); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.count(&st)
		return nil
	}
	dir, err := openDir(parent, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	w.count(&st)
	return w.dir(dir, depth+1)
}

func (w *walk) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if w.seen[st.Ino] {
			return
		}
		w.seen[st.Ino] = true
	}
	w.inodes++
	w.bytes += uint64(st.Blocks) * 512
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
