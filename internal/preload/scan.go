package preload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/limit"
)

// sort is what a file is, by its name.
type sort int

const (
	neither sort = iota
	archive
	list
)

// archiveNames are the endings of archives, and listName that of a list.
var archiveNames = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"}

const listName = ".txt"

func sortOf(name string) sort {
	switch {
	case strings.HasSuffix(name, listName):
		return list
	case slices.ContainsFunc(archiveNames, func(end string) bool { return strings.HasSuffix(name, end) }):
		return archive
	}
	return neither
}

// found is a file of the directory, or the reason why it cannot be taken in.
type found struct {
	name string
	identity
	err error
}

// scan lists the files of a directory, by name. Names that begin with a dot are passed over: they are of files that are
// on their way, or of an editor. So are directories. No file is opened.
func scan(dir *os.File) ([]found, error) {
	var all []found
	for {
		entries, err := dir.ReadDir(1000)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
				continue
			}
			if len(all) == int(limit.PreloadFiles.Limit) {
				return sorted(all), limit.PreloadFiles.Exceeded()
			}
			all = append(all, look(dir, e.Name()))
		}
		if errors.Is(err, io.EOF) {
			return sorted(all), nil
		}
		if err != nil {
			return sorted(all), err
		}
	}
}

func sorted(all []found) []found {
	slices.SortFunc(all, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return all
}

// look tells what a file is, without opening it: to open a device may do something.
func look(dir *os.File, name string) found {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return found{name: name, err: err}
	}
	f := found{name: name, identity: identityOf(&st)}
	f.err = fit(&st)
	if f.err == nil && sortOf(name) == neither {
		f.err = fail.New(errdefs.ErrInvalidArgument, "its name is that of no archive (%s) and of no list (%s)",
			strings.Join(archiveNames, ", "), listName)
	}
	return f
}

func identityOf(st *unix.Stat_t) identity {
	return identity{Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}
}

// fit refuses what is no file, and what others than root can change: who names images decides what runs on the node.
func fit(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return trusted(st)
	case unix.S_IFLNK:
		return fail.New(errdefs.ErrInvalidArgument,
			"it is a symbolic link, which is not followed: put the file itself there")
	}
	return fail.New(errdefs.ErrInvalidArgument, "it is no file")
}

// trusted refuses what others than the daemon's user can write.
func trusted(st *unix.Stat_t) error {
	if int(st.Uid) != os.Geteuid() {
		return fail.New(errdefs.ErrPermissionDenied, "it belongs to the user %d: let it belong to %d", st.Uid,
			os.Geteuid())
	}
	if st.Mode&0o022 != 0 {
		return fail.New(errdefs.ErrPermissionDenied, "others may write to it (mode %04o): take that from them",
			st.Mode&0o7777)
	}
	return nil
}

// openDir opens the directory; nil where there is none.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open it: %w", err)
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = trusted(&st)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// openFile opens a file of the directory, which may have become something else since it was looked at: nothing is
// waited for, and no link followed.
func openFile(dir, name string) (f *os.File, now identity, err error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, now, err
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, now, fit(&unix.Stat_t{Mode: unix.S_IFLNK})
	}
	if err != nil {
		return nil, now, err
	}
	f = os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = fit(&st)
	}
	if err != nil {
		return nil, now, errors.Join(err, f.Close())
	}
	return f, identityOf(&st), nil
}

// isWritten reports whether a process has a file open for writing, as far as the kernel tells. It asks for a lease,
// which the kernel gives for a file that is not open for writing, and gives it back at once.
func isWritten(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err != nil {
		return errors.Is(err, syscall.EAGAIN)
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err != nil
}

// still reports whether a file is as it was.
func still(f *os.File, was identity) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && identityOf(&st) == was
}
