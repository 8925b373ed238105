package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrMounted says that a tree was not removed because something is mounted in it.
var ErrMounted = errors.New("something is mounted there")

// deepest is how many directories a removal holds open at once. A container can nest without end, so what is deeper is
// first moved up.
const deepest = 100

// newcomers is how often a directory is emptied while files are made in it, as a monitor does an exit.
const newcomers = 5

// Remove removes dir and all below it, but never what is mounted there: it stops at a mount with ErrMounted. nil when
// there is nothing.
func Remove(dir string) error {
	parent, err := os.Open(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	defer parent.Close()
	r := &removal{}
	if err := r.entry(parent, filepath.Base(dir), 0); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// removal is one Remove in progress: where deep directories are moved up to, and under which number.
type removal struct {
	top  *os.File
	seq  int
	open bool // top takes what belongs to any project
}

func (r *removal) entry(parent *os.File, name string, depth int) error {
	err := unlink(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return removeError(parent, name, err)
	}
	dir, openErr := openDir(parent, name)
	if errors.Is(openErr, unix.ENOTDIR) {
		return removeError(parent, name, err)
	}
	if openErr != nil {
		return removeError(parent, name, openErr)
	}
	defer dir.Close()
	if depth >= deepest {
		return r.moveUp(parent, name)
	}
	if depth == 0 {
		r.top = dir
	}
	for tries := 1; ; tries++ {
		if err := r.children(dir, depth); err != nil {
			return err
		}
		err := unlink(parent, name, unix.AT_REMOVEDIR)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) || tries == newcomers {
			return removeError(parent, name, err)
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil { // something has been made since it was read
			return err
		}
	}
}

// children empties a directory. It reads until a whole pass finds nothing: what is moved up appears meanwhile, and a
// file system may skip names when others go.
func (r *removal) children(dir *os.File, depth int) error {
	for found := false; ; {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) && !found || errors.Is(err, unix.ENOENT) { // or it has been removed meanwhile
			return nil
		}
		if errors.Is(err, io.EOF) {
			_, err = dir.Seek(0, io.SeekStart)
			found = false
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			found = true
			if err := r.entry(dir, name, depth+1); err != nil {
				return err
			}
		}
	}
}

func (r *removal) moveUp(parent *os.File, name string) error {
	for {
		r.seq++
		to := ".moved-" + strconv.Itoa(r.seq)
		err := unix.Renameat2(int(parent.Fd()), name, int(r.top.Fd()), to, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.EXDEV) && !r.open && takeAnyProject(r.top) == nil:
			r.open = true
		default:
			return removeError(parent, name, err)
		}
	}
}

// unlink removes an entry, also one that was made immutable: a container with that power could keep its pod for ever.
func unlink(parent *os.File, name string, flags int) error {
	err := unix.Unlinkat(int(parent.Fd()), name, flags)
	if errors.Is(err, unix.EPERM) && makeMutable(parent, name) {
		err = unix.Unlinkat(int(parent.Fd()), name, flags)
	}
	return err
}

// makeMutable clears the immutable and append-only flags of a file or directory and of its parent.
func makeMutable(parent *os.File, name string) bool {
	changed := clearFlags(int(parent.Fd()))
	var st unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return changed
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return changed
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return changed
	}
	defer unix.Close(fd)
	return clearFlags(fd) || changed
}

func clearFlags(fd int) bool {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	const stuck = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // the same bits as FS_IMMUTABLE_FL and FS_APPEND_FL
	if err != nil || flags&stuck == 0 {
		return false
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^stuck) == nil
}

// openDir opens a directory in parent that is on the same mount.
func openDir(parent *os.File, name string) (*os.File, error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
	fd, err := unix.Openat2(int(parent.Fd()), name, how)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name)), nil
}

func removeError(parent *os.File, name string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		err = ErrMounted
	}
	return fmt.Errorf("%s: %w", filepath.Join(parent.Name(), name), err)
}

// Sweep removes every entry of base that is not live, with what is mounted at it or below it. It goes on after a
// failure and returns all of them. nil when base is not there.
func Sweep(base string, live func(name string) bool) error {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if live(e.Name()) {
			continue
		}
		path := filepath.Join(base, e.Name())
		if err := unmountBelow(path); err != nil {
			errs = append(errs, fmt.Errorf("sweep: %w", err))
			continue
		}
		if err := Remove(path); err != nil {
			errs = append(errs, fmt.Errorf("sweep: %w", err))
		}
	}
	return errors.Join(errs...)
}
