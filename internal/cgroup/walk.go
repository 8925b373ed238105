package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A walk goes through a group and those below it, children first, by descriptors of directories: who may make cgroups,
// such as a privileged container, can nest them deeper than any path reaches. It holds one directory open, however
// deep, and reads each once. It goes up by "..", which is safe because no cgroup moves to another parent.
type walk struct {
	path string
	dir  *os.File // where it is
	at   []level  // from the top to there

	// enter is told of a group before those below it are looked for, and leave of one when they are done, with the
	// directory above it. meet is told of a group that was found, and reports whether the walk goes into it. Each may
	// be nil.
	enter func(w *walk) error
	meet  func(above *os.File, name string) (into bool, err error)
	leave func(above *os.File, name string) error
}

// level is one group on the way from the top: its name, and the groups in it that are still to be visited.
type level struct {
	name  string
	below []string
}

// run walks. There may be nothing.
func (w *walk) run() error {
	top, err := openGroup(unix.AT_FDCWD, w.path)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: w.path, Err: err}
	}
	w.dir = top
	defer func() { _ = w.dir.Close() }()
	for err = w.begin(w.path); err == nil; {
		last := &w.at[len(w.at)-1]
		switch {
		case len(last.below) > 0:
			name := last.below[0]
			last.below = last.below[1:]
			err = w.down(name)
		case len(w.at) > 1:
			err = w.up()
		default:
			return nil
		}
	}
	return err
}

// begin is at a group for the first time.
func (w *walk) begin(name string) error {
	w.at = append(w.at, level{name: name})
	if w.enter != nil {
		if err := w.enter(w); err != nil {
			return err
		}
	}
	entries, err := w.dir.ReadDir(-1)
	if err != nil && !isGone(err) {
		return w.fail("read", "", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			last := &w.at[len(w.at)-1]
			last.below = append(last.below, e.Name())
		}
	}
	return nil
}

func (w *walk) down(name string) error {
	if w.meet != nil {
		into, err := w.meet(w.dir, name)
		if err != nil {
			return w.fail("remove", name, err)
		}
		if !into {
			return nil
		}
	}
	dir, err := openGroup(int(w.dir.Fd()), name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return w.fail("open", name, err)
	}
	_ = w.dir.Close()
	w.dir = dir
	return w.begin(name)
}

func (w *walk) up() error {
	name := w.at[len(w.at)-1].name
	above, err := openGroup(int(w.dir.Fd()), "..")
	if err != nil {
		return w.fail("open", "..", err)
	}
	_ = w.dir.Close()
	w.dir, w.at = above, w.at[:len(w.at)-1]
	if w.leave == nil {
		return nil
	}
	if err := w.leave(w.dir, name); err != nil {
		return w.fail("remove", name, err)
	}
	return nil
}

// longest bounds the path of a group in an error.
const longest = 300

// fail says where something went wrong.
func (w *walk) fail(op, name string, err error) error {
	var path strings.Builder
	for i, l := range w.at {
		if path.Len()+len(l.name) > longest && i > 0 {
			fmt.Fprintf(&path, "/… (%d levels below)", len(w.at)-1)
			name = ""
			break
		}
		if i > 0 {
			path.WriteByte('/')
		}
		path.WriteString(l.name)
	}
	if name != "" {
		path.WriteString("/" + name)
	}
	return &fs.PathError{Op: op, Path: path.String(), Err: err}
}

// there is a path from the directory where the walk is that leads to that directory for as long as it is there.
func (w *walk) there() string {
	if len(w.at) == 1 {
		return w.path
	}
	return "../" + w.at[len(w.at)-1].name
}

// openGroup opens the directory of a group.
func openGroup(above int, name string) (*os.File, error) {
	for {
		fd, err := unix.Openat(above, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EINTR {
			return nil, err
		}
	}
}

// isGone says that there is no such group, or no more.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTDIR)
}

// readAt reads a file of the group whose directory is open.
func readAt(dir *os.File, name string) ([]byte, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}
