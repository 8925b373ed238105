package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Strays walks the upper directory in dir, as Usage does, and counts the files and directories that are not of dir's
// project: neither counts the project them nor does its limit hold for them. What is neither a file nor a directory
// takes next to no room, and is passed over. The errors are those of Usage, and ErrNoQuota when dir has no project.
func Strays(ctx context.Context, dir string, perSecond int) (bytes, inodes uint64, err error) {
	f, err := openForQuota(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("look for files of other projects: %w", err)
	}
	own, err := attributes(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, 0, err
	}
	if !own.ours() {
		return 0, 0, noProject(dir)
	}
	w := &walk{ctx: ctx, pace: perSecond}
	w.counts = func(at int, name string, st *unix.Stat_t) bool {
		id, err := projectAt(at, name, st)
		switch {
		case errors.Is(err, errNoFile):
			return false
		case err != nil:
			w.miss(err)
			return false
		}
		return id != own.projid
	}
	return w.over(filepath.Join(dir, "upper"))
}

// errNoFile is of what is neither a file nor a directory.
var errNoFile = errors.New("neither a file nor a directory")

// projectAt is the project of the file or directory st. What a container puts in its place meanwhile is not opened.
func projectAt(at int, name string, st *unix.Stat_t) (uint32, error) {
	const noWait = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC // nor for a process with a lease
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return 0, errNoFile
	}
	place, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(place)
	var now unix.Stat_t
	if err := unix.Fstat(place, &now); err != nil {
		return 0, err
	}
	if now.Dev != st.Dev || now.Ino != st.Ino || now.Mode&unix.S_IFMT != kind {
		return 0, unix.ENOENT
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(place), noWait, 0)
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	a, err := attributes(f)
	return a.projid, err
}
